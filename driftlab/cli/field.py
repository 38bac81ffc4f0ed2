"""`driftlab serve`, `device` and `fleet`: the same methods in wall time, with HTTP between device and server."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab.cli.output import print_json, remark, say
from driftlab.errors import RequestError, as_typed, first_line, shortened

if TYPE_CHECKING:
    from driftlab.platform.field.agent import Agent, DeviceReport

TOKEN_VARIABLE = "DRIFTLAB_TOKEN"
MOST_SIZE = 20  # characters of a frame's size
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine's loopback interface.")]
Token = Annotated[
    str | None,
    typer.Option(help=f"The server's token.  [default: ${TOKEN_VARIABLE}]", envvar=TOKEN_VARIABLE, show_default=False),
]
Server = Annotated[str | None, typer.Option(metavar="URL", help="Address of the server.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Folder for the results.  [default: runs/field-TIME]")]
Workload = Annotated[
    str, typer.Option(help="A built-in stream, or one of this machine: video:FILE, folder:FOLDER, camera:SOURCE.")
]
Seconds = Annotated[float, typer.Option(min=1, help="Length of the stream.")]
SystemName = Annotated[str, typer.Option(help="A system by name.")]
Network = Annotated[str, typer.Option(help="The network on the device.")]
Fps = Annotated[float, typer.Option(min=0.1, max=240, help="Frames per second of the camera.")]
Size = Annotated[str, typer.Option(metavar="HEIGHTxWIDTH", help="Size of the network's input.")]
Steps = Annotated[int | None, typer.Option(min=0, help="Steps before the session, on the server.")]
TeacherSteps = Annotated[
    int | None, typer.Option(min=1, help="Steps of the teacher network, which labels a stream of this machine.")
]
Resume = Annotated[Path | None, typer.Option(help="Continue the device of this folder.", show_default=False)]
RecordLoad = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Only record the load of this machine, for --seconds.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
EXAMPLES = """\b
Examples:
  driftlab serve                                                     prints its address and its token
  driftlab device --server http://127.0.0.1:8700 --token T --workload streets/walking_paris --seconds 120
  driftlab device --record-load mine.csv --seconds 600               what else runs on this machine
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(short_help="Serve learning and answers to real devices.", epilog=EXAMPLES)(serve)
    app.command(short_help="Be a device in real time, with a server.", epilog=EXAMPLES)(device)
    app.command(short_help="Be many devices at once, for load.", epilog=EXAMPLES)(fleet)


def serve(
    port: Port = 8700,
    token: Token = None,
    folder: Annotated[Path, typer.Option(help="Where sessions are kept; a server goes on with them.")] = Path("served"),
    sessions: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many at a time.")] = 64,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second that one token may make.")] = 200.0,
    cert: Annotated[Path | None, typer.Option(help="Certificate in PEM, for TLS.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key in PEM.", show_default=False)] = None,
    address: Annotated[str | None, typer.Option(help="Serve on this Ray cluster: HOST:PORT or auto.")] = None,
) -> None:
    """Serve learning, updates and answers over HTTP on Ray Serve, until it is interrupted.

    Every route needs the token. It is made at the start and printed once, or given.
    """
    from driftlab.serve_apps.deployment import MIN_TOKEN, ServerArgs, serving
    from driftlab.serve_apps.http_server import ServerAddress

    if token is not None and len(token) < MIN_TOKEN:
        raise RequestError(f"The token has {len(token)} characters; give at least {MIN_TOKEN}, or none to make one.")
    secret = token or secrets.token_urlsafe(24)
    where = ServerAddress("127.0.0.1", port, *_tls(cert, key))
    args = ServerArgs(folder=str(folder.absolute()), token=secret, sessions=sessions, rate=rate, cert=where.cert)
    with serving(args, where, address):
        say(f"server  {where.url}")
        if token is None:
            say(f"token   {secret}")
        say("A browser asks for the token as a password; the name does not matter.")
        threading.Event().wait()


def _tls(cert: Path | None, key: Path | None) -> tuple[str, str]:
    """Check that certificate and key are there and fit."""
    import ssl

    if cert is None and key is None:
        return "", ""
    if cert is None or key is None:
        raise RequestError("TLS needs both files: give --cert and --key.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise RequestError(f"'{cert}' and '{key}' are no certificate and its key: {first_line(error)}.") from error
    return str(cert.absolute()), str(key.absolute())


def device(
    server: Server = None,
    token: Token = None,
    workload: Workload = "streets/walking_paris",
    seconds: Seconds = 120.0,
    system: SystemName = "ams",
    network: Network = "tiny",
    fps: Fps = 4.0,
    size: Size = "64x96",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream.")] = 0,
    pretrain_steps: Steps = None,
    teacher_steps: TeacherSteps = None,
    out: Out = None,
    resume: Resume = None,
    record_load: RecordLoad = None,
    as_json: Json = False,
) -> None:
    """Play a stream in real time, answer every frame for which there is time, and learn from a server.

    The device answers on while the server is away. It writes the same tables as `driftlab run`, with measured times.
    With --record-load it only records the load of this machine, for experiments whose devices have it.
    """
    if record_load is not None:
        _record(record_load, seconds, as_json)
        return
    from driftlab.platform.field.agent import Agent, join, read_ticket
    from driftlab.platform.field.client import Client

    if resume is not None:
        ticket = read_ticket(resume)
        _finish(Agent(ticket, resume), resume, as_json)
        return
    url, secret = _server(server, token)
    asked, source = _asked(
        {"system": system, "seed": seed, "student": _student(network, pretrain_steps)},
        {"name": workload, "duration_s": seconds, "fps": fps, **_size(size)},
        teacher_steps,
    )
    Client(url, secret)  # refuses what is no server's before anything is said
    remark("Opening a session; the server trains a network that it does not know yet, for a minute or more.")
    ticket = join(url, secret, asked, source)
    _start(Agent(ticket), out, as_json)


def _record(file: Path, seconds: float, as_json: bool) -> None:
    from driftlab.platform.field.recording import record, source_here
    from driftlab.platform.world.load_csv import read_steps

    if file.suffix != ".csv":
        raise RequestError(f"--record-load is '{file}'; the name of the file must end in .csv.")
    remark(f"Recording the load of this machine for {seconds:g} s; Ctrl-C ends it earlier.")
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
        say(f"{file}: {len(steps)} rows, mean CPU load {mean:.2f}; use it as `load: {file}` of a device")


def fleet(
    server: Server = None,
    token: Token = None,
    devices: Annotated[int, typer.Option(min=1, max=1000, help="Number of devices.")] = 50,
    spread: Annotated[float, typer.Option(min=0, help="Seconds over which the devices begin.")] = 10.0,
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
    """Play many devices against one server, for load: each has a session, a seed and a folder of its own."""
    from driftlab.platform.field.client import Client
    from driftlab.platform.field.fleet import Fleet
    from driftlab.platform.lab import paths

    url, secret = _server(server, token)
    Client(url, secret)
    stream = {"name": workload, "duration_s": seconds, "fps": fps, **_size(size)}
    student = _student(network, pretrain_steps)
    asked = [_asked({"system": system, "seed": seed, "student": student}, stream)[0] for seed in range(devices)]
    folder = out or paths.fresh("fleet")
    playing = Fleet(url, secret, asked, folder)
    report = playing.run(spread, remark)
    for fault in playing.faults:
        remark(fault)
    if as_json:
        print_json({**vars(report), "directory": folder})
    else:
        for name, value in vars(report).items():
            say(f"{name:10}  {value if not isinstance(value, float) else round(value, 3)}")
        say(f"runs        {folder}")
    if report.failed:
        raise typer.Exit(1)


def _server(server: str | None, token: str | None) -> tuple[str, str]:
    if server is None or token is None:
        raise RequestError(f"Name the server with --server URL and its token with --token or ${TOKEN_VARIABLE}.")
    return server, token


def _student(network: str, steps: int | None) -> dict[str, Any]:
    return {"network": network} | ({} if steps is None else {"pretrain_steps": steps})


def _asked(document: dict[str, Any], stream: dict[str, Any], teacher_steps: int | None = None) -> tuple[Any, str]:
    """Return the request of a session, and the workload that only the device knows."""
    from driftlab.datasets.catalogue import CAMERA
    from driftlab.platform.field.request import own_stream, read_asked

    if not own_stream(stream["name"]):
        return read_asked({**document, "workload": stream}), ""
    teacher = {"kind": "network"} | ({} if teacher_steps is None else {"pretrain_steps": teacher_steps})
    asked = read_asked({**document, "workload": {**stream, "name": CAMERA}, "teacher": teacher})
    return asked, stream["name"]


def _size(text: str) -> dict[str, int]:
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and len(text) <= MOST_SIZE):
        raise RequestError(f"--size '{shortened(text)}' is no size; give HEIGHTxWIDTH in pixels, such as 64x96.")
    return {"height": int(height), "width": int(width)}


def _start(agent: Agent, out: Path | None, as_json: bool) -> None:
    from driftlab.platform.lab.seal import create_run

    with create_run(agent.cell.experiment, out) as directory:
        _play(agent, directory, as_json)


def _finish(agent: Agent, directory: Path, as_json: bool) -> None:
    from driftlab.platform.lab import paths

    with paths.locked(directory):
        _play(agent, directory, as_json)


def _play(agent: Agent, directory: Path, as_json: bool) -> None:
    """Run the device, and write its tables; one that is stopped can go on."""
    from driftlab.platform.field.tables import write_run

    agent.begin(directory)
    try:
        agent.run(_tell)
    except BaseException:
        remark(f"To go on: {as_typed('driftlab', 'device', '--resume', directory)}")
        raise
    write_run(agent, directory)
    if agent.missing:
        remark(f"note: {agent.missing}")
    last = agent.report()
    if as_json:
        print_json({**vars(last), "directory": directory})
    else:
        say(_line(last))
        say(f"run     {directory}")
        say(f"report  {as_typed('driftlab', 'report', directory)}")


def _tell(report: DeviceReport) -> None:
    remark(_line(report))


def _line(report: DeviceReport) -> str:
    score = "-" if report.score is None else f"{report.score:.3f}"
    latency = "-" if report.latency_ms is None else f"{report.latency_ms:.0f}"
    line = (
        f"{report.time_s:6.1f} s  {report.fps:4.1f} fps  {latency:>4} ms  up {report.up_kbps:6.1f}  "
        f"down {report.down_kbps:6.1f} kbit/s  version {report.version:3d}  mIoU {score}"
    )
    return f"{line}  server away: {report.away[:60]}" if report.away else line
