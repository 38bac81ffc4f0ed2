"""Tables of systems, classes, camera motion, loads, and training on the stream."""

from __future__ import annotations

from driftlab.platform.results.tables.columns import BYTES, COUNT, FLAG, INDEX, PLACE, REAL, TEXT, column, table_of

SYSTEMS = table_of(
    "systems",
    "One row per parameter of every member of the cell's system, given or default.",
    column("system", TEXT, "row of the table of systems"),
    column("family", TEXT, "streaming, adaptation, scaling or scheduling"),
    column("member", TEXT, "name of the member"),
    column("parameter", TEXT, "name of the parameter", null="the member has none"),
    column("value", TEXT, "its value, in JSON", null="the member has no parameter"),
)

_ABSENT = "the class does not occur"

CLASSES = table_of(
    "classes",
    "One row per application and class of its task: counts over the session; none for detection.",
    *PLACE,
    column("class", INDEX, "number of the class in the task's list"),
    column("truth", COUNT, "pixels or frames of the class"),
    column("predicted", COUNT, "those that were predicted as the class"),
    column("hits", COUNT, "those of the class that were predicted as it"),
    column("score", REAL, "of pixels intersection over union, of frames the share that is right, 0 to 1", null=_ABSENT),
)

MOTION = table_of(
    "motion",
    "One row per device and stretch in which its camera accelerates steadily, if its (first) stream is a street.",
    column("device", TEXT, "which device"),
    column("time_s", REAL, "when the stretch began", "s"),
    column("travelled_m", REAL, "distance that the camera has travelled", "m"),
    column("speed_mps", REAL, "its speed then", "m/s"),
    column("acceleration_mps2", REAL, "its acceleration from then on", "m/s²"),
)

LOADS = table_of(
    "loads",
    "One row per application and reading of its device's load, where other programs run on the device.",
    *PLACE,
    column("time_s", REAL, "when the reading was taken", "s"),
    column("cpu", REAL, "mean share of the CPU in use by other programs from then until the next reading, 0 to 1"),
    column("sensed_cpu", REAL, "the same since the reading before, which the device has measured, 0 to 1"),
    column("forecast_cpu", REAL, "forecast of `cpu` by the scaling member, 0 to 1", null="it makes none"),
    column("free_bytes", BYTES, "free memory", "B"),
    column("clock", REAL, "clock, relative to the nominal one"),
    column("temperature_c", REAL, "temperature", "°C", null="not sensed"),
    column("battery", REAL, "charge of the battery, 0 to 1", null="there is none"),
    column("speed", REAL, "mean speed of the device until the next reading, relative to the idle device, 0 to 1"),
    column("variant", INDEX, "which of its networks it runs from then on", null="it waits, or there is no choice"),
    column("note", TEXT, "battery empty, no memory left, or the file of the load is over", null="nothing to say"),
)

PREDICTIONS = table_of(
    "predictions",
    "One row per application and reading, where the load slows each operator by its sensitivity (law `operators`).",
    *PLACE,
    column("time_s", REAL, "when the reading was taken", "s"),
    column("network", TEXT, "which of its networks ran since the reading before"),
    column("idle_ms", REAL, "latency without other programs, at its share", "ms"),
    column("cpu", REAL, "mean share of the CPU in use by other programs since the reading before, 0 to 1"),
    column("memory", REAL, "share of the memory in use by other programs, 0 to 1"),
    column("clock", REAL, "clock, relative to the nominal one"),
    column("predicted_ms", REAL, "latency under this load, by the predictor of the scaling member", "ms"),
    column("taken_ms", REAL, "latency under this load, as measured", "ms"),
)

AUDITS = table_of(
    "audits",
    "One row per audited call of an adaptation member: the work that ran, and the passes that the member states.",
    *PLACE,
    column("node", TEXT, "application (on the stream) or learner (in phases)"),
    column("call", TEXT, "adapt, predict or estimate"),
    column("number", COUNT, "number of the call at this node, from 1 on"),
    column("frames", COUNT, "frames that the member was given", "frames"),
    column("stated_macs", COUNT, "multiply-accumulates of the passes that the member states", "MAC"),
    column("network_macs", COUNT, "multiply-accumulates that its network and copies of it ran", "MAC"),
    column("beyond_macs", COUNT, "those that are charged in addition to the stated ones", "MAC"),
    column("operations", COUNT, "operations outside the network, charged as one MAC each", "operations"),
    column("host_seconds", REAL, "processor time of the host for the audited call", "s"),
)

CHANNELS = table_of(
    "channels",
    "One row per group of channels and phase that selected channels for its samples (scaling `surrogate`).",
    *PLACE,
    column("phase", COUNT, "number of the phase, from 1 on"),
    column("time_s", REAL, "time of the newest sample", "s"),
    column("domain", INDEX, "its domain", null="the device has no domain labels"),
    column("group", TEXT, "group of channels, named after its layer"),
    column("kept", TEXT, "numbers of the kept channels, ascending, with spaces between"),
)

_NOT_CHOSEN = "it was not chosen, or nothing was trained"
_NO_TRUTH = f"{_NOT_CHOSEN}, or no later frame of the domain has a truth"
_NO_MONITOR = f"{_NOT_CHOSEN}, or the member does not monitor"
_NO_HEAD = f"{_NOT_CHOSEN}, the head is not linear, or there are fewer than four classes"

ESTIMATES = table_of(
    "estimates",
    "One row per training configuration whose accuracy was estimated before a phase, by an estimator or by trials.",
    *PLACE,
    column("time_s", REAL, "when the estimate was complete", "s"),
    column("domain", INDEX, "domain of the newest sample", null="the device has no domain labels"),
    column("config", TEXT, "name of the training configuration"),
    column("variant", INDEX, "number of its network, from the smallest on", null="there is one network"),
    column("size", REAL, "size of its network, as a share of the full one", null="there is one network"),
    column("method", TEXT, "estimator or trials"),
    column("before", REAL, "estimated accuracy before the phase, 0 to 1", null="no sample has a label"),
    column("after", REAL, "estimated accuracy after it, 0 to 1", null="no sample has a label"),
    column("isolated_s", REAL, "time to estimate all configurations of the round without co-running tasks", "s"),
    column("memory_bytes", BYTES, "memory for that in addition to the running network", "B"),
    column("chosen", FLAG, "whether it was trained"),
    column("observed_before", REAL, "share of confident samples, by which ElasticDNN monitors", null=_NO_MONITOR),
    column("observed_after", REAL, "the same after the phase", null=_NO_MONITOR),
    column("agreement_before", REAL, "accuracy by agreement under dropout (AETTA), for comparison", null=_NO_HEAD),
    column("agreement_after", REAL, "the same after the phase", null=_NO_HEAD),
    column("true_before", REAL, "accuracy before the phase on as many later frames of the domain", null=_NO_TRUTH),
    column("true_after", REAL, "accuracy after it on these frames", null=_NO_TRUTH),
)

STAGES = table_of(
    "stages",
    "One row per stage of a phase on the device, with its memory: load, generate, retrain, complete, update.",
    *PLACE,
    column("time_s", REAL, "when training began", "s"),
    column("stage", TEXT, "generate: pass through the network that is cut; update: feedback of the trained weights"),
    column("network_bytes", BYTES, "memory of the running network", "B"),
    column("samples_bytes", BYTES, "memory of the samples, which the peak of `devices` omits", "B"),
    column("memory_bytes", BYTES, "memory in addition to these: activations, gradients, copies, whole network", "B"),
)

ADAPTATIONS = table_of(
    "adaptations",
    "One row per training batch of an application's stream on its device, skipped ones included.",
    *PLACE,
    column("version", INDEX, "version of the model from then on"),
    column("frames", COUNT, "frames in the batch", "frames"),
    column("start_s", REAL, "when training began", "s", null="the session ended before"),
    column("end_s", REAL, "when the trained weights came into use", "s", null="the session ended before"),
    column("isolated_s", REAL, "time without co-running tasks", "s"),
    column("energy_j", REAL, "energy", "J"),
    column("memory_bytes", BYTES, "memory in addition to the running network: activations, gradients, state", "B"),
    column("iterations", COUNT, "optimiser steps", "steps"),
    column("loss", REAL, "loss of the last step", null="there was none"),
    column("accepted", REAL, "share of its samples that the member trained on, 0 to 1", null="the member selects none"),
    column("skipped", TEXT, "why nothing was trained", null="something was"),
)
