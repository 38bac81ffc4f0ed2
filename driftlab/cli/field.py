"""`driftlab serve`, `device` and `fleet`: run methods in wall-clock time on devices and a server."""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab.cli.apps import Apps, Capacity, MemoryMb, run_apps, settings_of_apps
from driftlab.cli.output import print_json, print_note, say
from driftlab.errors import RequestError, RunError, as_typed, first_line, shortened

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent, DeviceReport

TOKEN_VARIABLE = "DRIFTLAB_TOKEN"
MAX_SIZE = 20  # characters of --size
LOOPBACK = ("127.0.0.1", "::1", "localhost")
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")]
Token = Annotated[
    str | None,
    typer.Option(
        help=f"The token for devices.  [default: ${TOKEN_VARIABLE}]", envvar=TOKEN_VARIABLE, show_default=False
    ),
]
MaxReplicas = Annotated[
    int, typer.Option(min=0, max=64, help="Grow to as many processes if requests need them; 0: do not grow.")
]
Networks = Annotated[
    int, typer.Option(min=1, help="Sessions whose networks a process keeps in memory; it reads others from disk.")
]
OwnerToken = Annotated[
    str | None,
    typer.Option(help=f"The owner's token.  [default: ${TOKEN_VARIABLE}]", envvar=TOKEN_VARIABLE, show_default=False),
]
Server = Annotated[str | None, typer.Option(metavar="URL", help="Address of the server.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: runs/field-TIME]")]
Workload = Annotated[
    str, typer.Option(help="A built-in stream, or video:FILE, folder:FOLDER, camera:SOURCE on this computer.")
]
Seconds = Annotated[float, typer.Option(min=1, help="Length of the stream.")]
SystemName = Annotated[str, typer.Option(help="Name of the system.")]
Network = Annotated[str, typer.Option(help="Network on the device.")]
Fps = Annotated[float, typer.Option(min=0.1, max=240, help="Frames per second of the stream.")]
Size = Annotated[str, typer.Option(metavar="HEIGHTxWIDTH", help="Size of the network's input.")]
Steps = Annotated[int | None, typer.Option(min=0, help="Pre-training steps of the network, on the server.")]
TeacherSteps = Annotated[
    int | None, typer.Option(min=1, help="Pre-training steps of the teacher, which labels video:, folder:, camera:.")
]
Resume = Annotated[Path | None, typer.Option(help="Resume the device of this folder.", show_default=False)]
LatencyGoal = Annotated[
    float | None,
    typer.Option(min=1e-4, max=3600, metavar="SECONDS", help="From a frame to its prediction.", show_default=False),
]
EnergyGoal = Annotated[
    float | None,
    typer.Option(min=1e-9, max=1e6, metavar="JOULES", help="Per frame, by the hardware profile.", show_default=False),
]
AccuracyGoal = Annotated[
    float | None, typer.Option(min=0, max=1, help="Validation accuracy of the network.", show_default=False)
]
RecordLoad = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Only record the load of this computer, for --seconds.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
EXAMPLES = """\b
Examples:
  driftlab serve                                                     prints address and token
  driftlab device --server http://127.0.0.1:8700 --token T --workload streets/walking_paris --seconds 120
  driftlab device --app lane.yaml --app signs.yaml --seconds 60      several applications, without a server
  driftlab device --record-load mine.csv --seconds 600               records CPU and memory load
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Run a server that trains and updates real devices.", epilog=EXAMPLES)(serve)
    app.command(short_help="Run a device in real time with a server.", epilog=EXAMPLES)(device)
    app.command(short_help="Run many devices, to test a server under load.", epilog=EXAMPLES)(fleet)


def serve(
    port: Port = 8700,
    host: Annotated[str, typer.Option(help="Address of the interface to listen on.")] = LOOPBACK[0],
    token: OwnerToken = None,
    state_dir: Annotated[Path, typer.Option(help="Folder of the sessions, which a restart resumes.")] = Path("served"),
    max_sessions: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of sessions.")] = 64,
    rate_limit: Annotated[float, typer.Option(min=0.1, help="Maximum requests per second and token.")] = 200.0,
    replicas: Annotated[int, typer.Option(min=1, max=64, help="Processes that host sessions.")] = 1,
    max_replicas: MaxReplicas = 0,
    networks: Networks = 64,
    torch_device: Annotated[str, typer.Option(help="Where learners and predictions run: cpu, cuda or cuda:N.")] = "cpu",
    cert: Annotated[Path | None, typer.Option(help="Certificate in PEM format, for TLS.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="Private key in PEM format.", show_default=False)] = None,
    without_tls: Annotated[
        bool, typer.Option("--without-tls", help="Allow another --host without TLS: tokens and frames are readable.")
    ] = False,
    address: Annotated[str | None, typer.Option(help="Serve on this Ray cluster: HOST:PORT or auto.")] = None,
) -> None:
    """Train networks on the uploads of devices, and serve updates and predictions over HTTP.

    The server runs on Ray Serve until it is interrupted. It prints two tokens: that with which devices open sessions,
    and the owner's, unless it is given.
    """
    _check_device(torch_device, address)
    _check_folder(state_dir)
    from driftlab.serve_apps.deployment import MIN_TOKEN, ServerArgs, serving
    from driftlab.serve_apps.http_server import ServerAddress
    from driftlab.serve_apps.tokens import enrolment_of

    if token is not None and len(token) < MIN_TOKEN:
        raise RequestError(
            f"The token has {len(token)} characters. Use at least {MIN_TOKEN}, or leave it out to create one."
        )
    secret = token or secrets.token_urlsafe(24)
    where = ServerAddress(host, port, *_tls(cert, key, without_tls=without_tls or host in LOOPBACK))
    args = ServerArgs(
        state_dir=str(state_dir.absolute()),
        token=secret,
        max_sessions=max_sessions,
        rate_limit=rate_limit,
        replicas=replicas,
        max_replicas=max_replicas,
        networks=networks,
        torch_device=torch_device,
        cert=where.cert,
    )
    print_note("Starting the server and its Ray processes, which takes about half a minute.")
    with serving(args, where, address):
        say(f"server  {where.url}")
        say(f"token   {enrolment_of(secret)}  for devices: it only opens sessions")
        if token is None:
            say(f"owner   {secret}  for you: keep it on this computer")
        say("In a browser, enter the owner's token as the password; the user name is ignored.")
        threading.Event().wait()


def _check_folder(state_dir: Path) -> None:
    """Refuse a folder that others can write to, or that cannot be made."""
    from driftlab.platform.core.files import check_private

    if state_dir.is_dir():
        check_private(state_dir)
        return
    try:
        state_dir.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RequestError(
            f"--state-dir '{state_dir}' cannot be made: {error.strerror}. Use another folder."
        ) from error


def _check_device(torch_device: str, address: str | None) -> None:
    """Refuse an unknown device, and a GPU that this computer does not have if the server runs here."""
    from driftlab import determinism
    from driftlab.platform.sim.host import check_torch_device

    kind, colon, number = torch_device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isascii() and number.isdecimal())):
        raise RequestError(f"--torch-device '{shortened(torch_device)}' is unknown. Use cpu, cuda or cuda:N.")
    determinism.check(torch_device)
    if address is None and "RAY_ADDRESS" not in os.environ:
        check_torch_device(torch_device)


def _tls(cert: Path | None, key: Path | None, *, without_tls: bool) -> tuple[str, str]:
    """Return the absolute paths of certificate and key; refuse those that are no pair, and missing ones."""
    import ssl

    if cert is None and key is None and not without_tls:
        raise RequestError(
            "Without TLS, other computers in the network of --host can read tokens and frames. Give --cert and --key, "
            "or --without-tls if a proxy in front of the server has TLS."
        )
    if cert is None and key is None:
        return "", ""
    if cert is None or key is None:
        raise RequestError("TLS requires two files. Give --cert and --key.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise RequestError(f"'{cert}' and '{key}' are not a certificate and its key: {first_line(error)}.") from error
    return str(cert.absolute()), str(key.absolute())


def device(
    ctx: typer.Context,
    server: Server = None,
    token: Token = None,
    workload: Workload = "streets/walking_paris",
    seconds: Seconds = 120.0,
    system: SystemName = "ams",
    network: Network = "tiny",
    fps: Fps = 4.0,
    size: Size = "64x96",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name on the server's live page.", show_default=False)] = None,
    pretrain_steps: Steps = None,
    teacher_steps: TeacherSteps = None,
    latency_goal: LatencyGoal = None,
    energy_goal: EnergyGoal = None,
    accuracy_goal: AccuracyGoal = None,
    out: Out = None,
    resume: Resume = None,
    record_load: RecordLoad = None,
    apps: Apps = None,
    capacity: Capacity = 1.0,
    memory: MemoryMb = None,
    as_json: Json = False,
) -> None:
    """Run a network on a stream in real time, and apply the updates of a server.

    The device skips frames that arrive during inference. While the server is unavailable it continues without updates.
    It writes the tables of `driftlab run`, with measured times. With a system that chooses among networks, such as
    adascale, it reads the load of this computer and chooses within the goals. With --app it runs several
    applications without a server, and a scheduler divides one core among them. With --record-load it only records the
    load of this computer, for the devices of an experiment.
    """
    _check_together(ctx, bool(apps))
    if record_load is not None:
        _record(record_load, seconds, as_json)
        return
    stream = {"name": workload, "duration_s": seconds, "fps": fps, **_size(size)}
    if apps:
        chosen = system if _is_given(ctx, "system") else "nestdnn"
        settings = settings_of_apps(chosen, stream, _student(network, pretrain_steps), seed, memory)
        run_apps(apps, settings, capacity, out, as_json)
        return
    if resume is not None:
        _finish(ctx, resume, as_json)
        return
    from driftlab.platform.field.agent import Agent
    from driftlab.platform.field.ticket import check_token, join
    from driftlab.platform.lab.paths import refuse_filled

    url, secret = _server(server, token)
    if out is not None:
        refuse_filled(out)  # before the server has a session for it
    goals = _goals(latency_goal, energy_goal, accuracy_goal)
    document = {"name": name, "system": system, "seed": seed, "student": _student(network, pretrain_steps), **goals}
    asked, source = _session_request(document, stream, teacher_steps)
    check_token(url, secret)
    print_note("Opening a session. The server trains the network if it is not cached, which takes a minute or more.")
    ticket = join(url, secret, asked, source)
    _start(Agent(ticket), out, as_json)


def _is_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _check_alone(ctx: typer.Context) -> None:
    """Refuse options that have no effect with --resume."""
    given = [f"--{name.replace('_', '-')}" for name in ctx.params if _is_given(ctx, name)]
    if extra := [name for name in given if name not in ("--resume", "--as-json")]:
        raise RequestError(f"--resume continues a device with its settings; leave out {', '.join(sorted(extra))}.")


def _check_together(ctx: typer.Context, several: bool) -> None:
    """Refuse options that have no effect with, or without, --app."""
    alone = ("server", "token", "resume", "record_load", "teacher_steps", "name")
    goals = ("latency_goal", "energy_goal", "accuracy_goal")
    names = (*alone, *goals) if several else ("capacity", "memory")
    if given := [f"--{name.replace('_', '-')}" for name in names if _is_given(ctx, name)]:
        verb = "have" if len(given) > 1 else "has"
        raise RequestError(f"{', '.join(given)} {verb} no effect {'with' if several else 'without'} --app.")


def _record(file: Path, seconds: float, as_json: bool) -> None:
    from driftlab.platform.field.recording import record, source_here
    from driftlab.platform.world.load_csv import read_steps

    if file.suffix != ".csv":
        raise RequestError(f"--record-load is '{file}'. Use a name that ends in .csv.")
    print_note(f"Recording the load of this computer for {seconds:g} s; press Ctrl-C to stop earlier.")
    try:
        with suppress(KeyboardInterrupt):
            record(file, seconds, source_here())
    except OSError as error:
        raise RequestError(f"'{file}' cannot be written: {error.strerror}.") from error
    steps = read_steps(file)
    mean = sum(step.cpu for step in steps) / len(steps)
    if as_json:
        print_json({"file": file, "rows": len(steps), "mean_cpu": mean})
    else:
        say(f"{file}: {len(steps)} rows, mean CPU load {mean:.2f}; in an experiment: `load: {file}` of a device")


def fleet(
    server: Server = None,
    token: Token = None,
    devices: Annotated[int, typer.Option(min=1, max=1000, help="Number of devices.")] = 50,
    ramp_up: Annotated[float, typer.Option(min=0, help="Seconds over which the devices start.")] = 10.0,
    workload: Workload = "any-street",
    seconds: Seconds = 60.0,
    system: SystemName = "ams",
    network: Network = "half",
    fps: Fps = 1.0,
    size: Size = "32x48",
    pretrain_steps: Steps = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run many devices with one server, as a load test; each has its own session, seed and folder."""
    from driftlab.platform.field.fleet import Fleet
    from driftlab.platform.field.ticket import check_token
    from driftlab.platform.lab import paths

    url, secret = _server(server, token)
    check_token(url, secret)
    stream = {"name": workload, "duration_s": seconds, "fps": fps, **_size(size)}
    student = _student(network, pretrain_steps)
    asked = [
        _session_request({"name": f"fleet-{seed}", "system": system, "seed": seed, "student": student}, stream)[0]
        for seed in range(devices)
    ]
    folder = out or paths.fresh("fleet")
    started = Fleet(url, secret, asked, folder)
    report = started.run(ramp_up, print_note)
    for fault in started.faults:
        print_note(fault)
    if as_json:
        print_json({**vars(report), "directory": folder})
    else:
        for name, value in vars(report).items():
            say(f"{name:10}  {value if not isinstance(value, float) else round(value, 3)}")
        say(f"runs        {folder}")
    if report.failed:
        raise typer.Exit(1)


def _server(server: str | None, token: str | None) -> tuple[str, str]:
    if server is None:
        raise RequestError("No server is given. Use --server URL; `driftlab serve` prints it.")
    if token is None:
        raise RequestError(f"No token is given. Use --token or ${TOKEN_VARIABLE}; `driftlab serve` prints it.")
    return server, token


def _student(network: str, steps: int | None) -> dict[str, Any]:
    return {"network": network} | ({} if steps is None else {"pretrain_steps": steps})


def _goals(latency_s: float | None, energy_j: float | None, accuracy: float | None) -> dict[str, Any]:
    """Return the part of a request with the goals that are given; empty without any."""
    named = {"latency_s": latency_s, "energy_j": energy_j, "accuracy": accuracy}
    given = {name: value for name, value in named.items() if value is not None}
    return {"goals": given} if given else {}


def _session_request(
    document: dict[str, Any], stream: dict[str, Any], teacher_steps: int | None = None
) -> tuple[Any, str]:
    """Return the request of a session, and the device's source: empty for a built-in stream."""
    from driftlab.datasets.catalogue import CAMERA, open_stream
    from driftlab.platform.field.camera import is_camera
    from driftlab.platform.field.request import own_stream, parse_session_request

    if not own_stream(stream["name"]):
        return parse_session_request({**document, "workload": stream}), ""
    if not is_camera(stream["name"]):
        open_stream(seed=0, **stream)  # before the server trains a network for it
    teacher = {"kind": "network"} | ({} if teacher_steps is None else {"pretrain_steps": teacher_steps})
    asked = parse_session_request({**document, "workload": {**stream, "name": CAMERA}, "teacher": teacher})
    return asked, stream["name"]


def _size(text: str) -> dict[str, int]:
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and len(text) <= MAX_SIZE):
        raise RequestError(f"--size '{shortened(text)}' is not a size. Use HEIGHTxWIDTH in pixels, such as 64x96.")
    return {"height": int(height), "width": int(width)}


def _start(agent: Agent, out: Path | None, as_json: bool) -> None:
    from driftlab.platform.lab.seal import create_run

    goals = agent.ticket.asked.get("goals")
    if goals and agent.load is None:
        print_note(f"note: '{agent.cell.runner.cell.system.name}' chooses no network by load, so goals have no effect")
    with create_run(agent.cell.experiment, out) as directory:
        _run_device(agent, directory, as_json)


def _finish(ctx: typer.Context, directory: Path, as_json: bool) -> None:
    """Run the rest of a device, if it has not ended; its tables are complete then."""
    _check_alone(ctx)
    from driftlab.platform.field.agent import Agent, is_finished
    from driftlab.platform.field.ticket import read_ticket
    from driftlab.platform.lab import paths

    ticket = read_ticket(directory)
    if not is_finished(directory):
        agent = Agent(ticket, directory)
        with paths.locked(directory):
            _run_device(agent, directory, as_json)
        return
    print_note(f"Nothing is left to do: the device of '{directory}' has ended.")
    if as_json:
        print_json({"directory": directory})
    else:
        say(f"report  {as_typed('driftlab', 'report', directory)}")


def _run_device(agent: Agent, directory: Path, as_json: bool) -> None:
    """Run a device and write its tables; print the command that resumes it if it is stopped."""
    from driftlab.platform.field.tables import write_run
    from driftlab.platform.sim.host import rare_garbage_searches

    agent.begin(directory)
    if agent.resumed_by:
        print_note(f"Going on at {agent.now():.1f} s of the stream, by the clock of {agent.resumed_by}.")
    try:
        with rare_garbage_searches():  # one of all objects takes .1 s, and delays a frame
            agent.run(_print_report)
    except BaseException:
        print_note(f"To go on: {as_typed('driftlab', 'device', '--resume', directory)}")
        raise
    write_run(agent, directory)
    agent.seal()
    if agent.missing:
        print_note(f"note: {agent.missing}")
    last = agent.report()
    if as_json:
        print_json({**vars(last), "directory": directory})
    else:
        say(_line(last))
        say(f"run     {directory}")
        say(f"report  {as_typed('driftlab', 'report', directory)}")
    if agent.traffic.failed:
        raise RunError(f"The session ended early, and the device went on without it: {agent.traffic.failed}")


def _print_report(report: DeviceReport) -> None:
    print_note(_line(report))


def _line(report: DeviceReport) -> str:
    score = "-" if report.score_live is None else f"{report.score_live:.3f}"
    latency = "-" if report.latency_ms is None else f"{report.latency_ms:.0f}"
    line = (
        f"{report.time_s:6.1f} s  {report.fps:4.1f} fps  {latency:>4} ms  up {report.up_kbps:6.1f}  "
        f"down {report.down_kbps:6.1f} kbit/s  version {report.version:3d}  live {report.measure} {score}"
    )
    if report.network is not None:
        line = f"{line}  network {report.network}"
    return f"{line}  no server: {report.away[:60]}" if report.away else line
