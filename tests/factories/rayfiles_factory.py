"""The part of KubeRay's clusters that files here use, as its reference describes it."""

from __future__ import annotations


def fields(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


TEXT, COUNT, YES_NO = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITIES = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(m|Ki|Mi|Gi|Ti)?$"}}
CONTAINER = fields(
    ("name", "image"),
    name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    image=TEXT,
    env={"type": "array", "items": fields(("name",), name=TEXT, value=TEXT, valueFrom={"type": "object"})},
    resources=fields(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts={"type": "array", "items": fields(("name", "mountPath"), name=TEXT, mountPath=TEXT)},
)
CLAIM = fields(("claimName",), claimName=TEXT)
POD = fields(
    ("containers",),
    securityContext=fields(fsGroup=COUNT),
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
    volumes={"type": "array", "items": fields(("name",), name=TEXT, persistentVolumeClaim=CLAIM)},
)
TEMPLATE = fields(("spec",), metadata={"type": "object"}, spec=POD)
WORKERS = fields(
    ("groupName", "template"),
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    idleTimeoutSeconds=COUNT,
    suspend=YES_NO,
    rayStartParams=WORDS,
    template=TEMPLATE,
)
CLUSTER = fields(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=fields(mode={"enum": ["disabled", "token"]}, secretName=TEXT),
    enableInTreeAutoscaling=YES_NO,
    autoscalerOptions={"type": "object"},
    headServiceAnnotations=WORDS,
    suspend=YES_NO,
    headGroupSpec=fields(
        ("template",),
        rayStartParams=WORDS,
        serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
        enableIngress=YES_NO,
        template=TEMPLATE,
    ),
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
