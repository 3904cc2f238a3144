"""Result of a rehearsal, and the end of a rehearsed call."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from tpudata.devices.tpu_compiler.step_cost import FeedingRate, StepCost
from tpudata.estimator.api.errors import RehearsalError
from tpudata.estimator.api.findings import Finding
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.tensor_types import Array

_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """Result of a rehearsal.

    Attributes:
        findings: what a TPU would reject or run slowly.
        metric_names: names of the metrics of the evaluation.
        costs: costs of the steps that were compiled for a slice.
    """

    findings: tuple[Finding, ...]
    metric_names: tuple[str, ...]
    costs: tuple[StepCost, ...] = ()


class Findings(list[Finding]):
    """List of findings, with the costs of the steps.

    Attributes:
        costs: a `StepCost` for each mode that was compiled for a slice.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        super().__init__(rehearsal.findings)
        self.costs = rehearsal.costs

    def to_json(self, feeding: FeedingRate | None = None) -> dict[str, object]:
        """Return the findings and costs as a JSON object.

        Args:
            feeding: measured rate of feeding to compare the costs with, or None.

        Returns:
            `tpu` (null without costs): `name`, `chips`, `hosts` and `replicas` of the slice; `flops` (a second), `bandwidth` (bytes
            a second) and `hbm` (bytes) of a chip, with their `source`; `compiler` and `effort`. `steps`: `StepCost.to_json` of
            each, with `feeding` (`FeedingRate.compare`) or null. `findings`: the fields of each.
        """
        steps = [
            {**cost.to_json(), "feeding": None if feeding is None else feeding.compare(cost)} for cost in self.costs
        ]
        return {
            "tpu": _describe_tpu(self.costs[0]) if self.costs else None,
            "steps": steps,
            "findings": [dataclasses.asdict(finding) for finding in self],
        }


def _describe_tpu(cost: StepCost) -> dict[str, object]:
    """Return the JSON object of the slice, its chip and the compiler."""
    tpu, chip = cost.tpu, cost.tpu.chip
    return {
        "name": tpu.name,
        "chips": tpu.chips,
        "hosts": tpu.hosts,
        "replicas": tpu.replicas,
        "flops": chip.flops,
        "bandwidth": chip.bandwidth,
        "hbm": chip.hbm,
        "source": chip.source,
        "compiler": cost.compiled.compiler,
        "effort": cost.effort,
    }


def raise_if_rejected(findings: Sequence[Finding], modes: Sequence[str]) -> None:
    """Raise RehearsalError if a finding is rejected; log the findings that are not rejected as warnings.

    Args:
        findings: all findings.
        modes: rehearsed modes, for the log.

    Raises:
        RehearsalError: a TPU would reject the program; the message lists all rejected findings.
    """
    rejected = [finding for finding in findings if finding.is_rejected]
    warnings = [finding for finding in findings if not finding.is_rejected]
    for finding in warnings:
        _log.warning("%s", finding)
    if rejected:
        noun = "thing" if len(rejected) == 1 else "things"
        lines = "".join(f"\n  {finding}" for finding in rejected)
        raise RehearsalError(f"A TPU would reject {len(rejected)} {noun}:{lines}", tuple(findings))
    _log.info("Rehearsal of %s: nothing that a TPU would reject.", ", ".join(modes))


def make_placeholder_metrics(rehearsal: Rehearsal, modes: Sequence[str], *, has_limit: bool) -> dict[str, Array]:
    """Return placeholders for the metrics of a rehearsed call, if a TPU would accept it: NaN each, and a global_step of 0.

    Args:
        rehearsal: result of the rehearsal.
        modes: modes that the call would run.
        has_limit: whether the call limits the number of training steps; True for a call that does not train.

    Raises:
        RehearsalError: a TPU would reject the program, or the call does not limit training.
    """
    findings = rehearsal.findings
    if not has_limit:
        what = "it has neither steps nor max_steps: a TPU runs whole loops, so their end must be known"
        findings = (Finding(ModeKeys.TRAIN, "train", what, "pass one of them"), *findings)
    raise_if_rejected(findings, modes)
    return {**dict.fromkeys((*rehearsal.metric_names, "loss"), np.float32(np.nan)), "global_step": np.int64(0)}
