"""Deterministic operators on a GPU, in every process that computes there.

A run that is resumed, and calls that are repeated after the loss of a process, must give the same tables. On a CPU they
do. On a GPU this requires settings of torch, with which an operator without a deterministic form raises an error.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from driftlab.errors import DriftlabError, RequestError, RunError

if TYPE_CHECKING:
    import torch

SWITCH = "DRIFTLAB_DETERMINISTIC"  # 0: operators on a GPU may be those that add in another order each time
WORKSPACE, WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")  # cuBLAS is deterministic with these only
NO_FORM = re.compile(
    r"(?:RuntimeError: )?(\w[\w ]*?) does not have a deterministic implementation, but you set "
    r"(?:.*?adding deterministic support for this operation\.?|.*)",
    re.DOTALL,
)
FIX = f"Use a member or network without it, or set {SWITCH}=0; repeated calls may then give other numbers."


def environment() -> dict[str, str]:
    """Return the variable for processes on other computers, if it is set."""
    return {SWITCH: os.environ[SWITCH]} if SWITCH in os.environ else {}


def check(torch_device: str) -> None:
    """Refuse settings with which a GPU cannot compute deterministically, before other processes start."""
    if torch_device.startswith("cuda") and _is_wanted():
        _check_workspace()


def make_deterministic(torch_device: str) -> Callable[[], None]:
    """Make this process deterministic if it computes on a GPU, and return the function that undoes it.

    Call it before CUDA starts.
    """
    if not (torch_device.startswith("cuda") and _is_wanted()):
        return lambda: None
    import torch

    _check_workspace(started=torch.cuda.is_initialized())
    os.environ.setdefault(WORKSPACE, WORKSPACES[0])
    cudnn: Any = torch.backends.cudnn
    before = (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
    _take_ordered_loss()

    def choose(algorithms: bool, deterministic: bool, benchmark: bool) -> None:
        torch.use_deterministic_algorithms(algorithms)
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark

    choose(True, True, False)
    return partial(choose, *before)


def in_plain_words(text: str) -> str:
    """Return a text in which torch's message about an operator is replaced by its name and a fix."""
    return NO_FORM.sub(lambda found: f"{found[1]} has no deterministic form on this device. {FIX}", text)


def plain_error(error: DriftlabError) -> DriftlabError:
    """Return the error itself, or one in plain words if an operator has no deterministic form."""
    text = str(error)
    plain = in_plain_words(text)
    return error if plain == text else RunError(plain)


def _is_wanted() -> bool:
    given = os.environ.get(SWITCH, "1")
    if given not in ("0", "1"):
        raise RequestError(f"{SWITCH} is '{given}'; set it to 0 or 1, or unset it.")
    return given == "1"


def _check_workspace(*, started: bool = False) -> None:
    """Refuse another workspace of cuBLAS, which reads the variable at its start."""
    given = os.environ.get(WORKSPACE)
    if given is None and started:
        raise RequestError(
            f"This process has used a GPU without {WORKSPACE}, so its results cannot be repeated. Start Python with "
            f"{WORKSPACE}={WORKSPACES[0]}, or set {SWITCH}=0."
        )
    if given is not None and given not in WORKSPACES:
        raise RequestError(
            f"{WORKSPACE} is '{given}', with which results cannot be repeated. Unset it or set it to {WORKSPACES[0]}, "
            f"or set {SWITCH}=0."
        )


@cache
def _take_ordered_loss() -> torch.library.Library:
    """Replace the loss of label maps on GPUs, whose sum over pixels has no deterministic form in torch."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        library.impl("nll_loss2d_forward", ordered_loss, "CUDA")
    return library


def ordered_loss(
    scores: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignored: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of label maps and the weight of their pixels, as `aten::nll_loss2d_forward` does."""
    import torch

    counts = target != ignored
    safe = torch.where(counts, target, 0)
    shares = counts.to(scores.dtype) if weight is None else torch.where(counts, weight[safe], 0)
    losses = torch.where(counts, -scores.gather(1, safe.unsqueeze(1)).squeeze(1) * shares, 0)
    if reduction == 0:
        return losses, scores.new_zeros(())
    total = shares.sum()
    return (losses.sum() / total if reduction == 1 else losses.sum()), total
