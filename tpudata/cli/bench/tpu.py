"""The compiler's lower bound on the time of a model's step, for `tpudata bench --tpu`."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import TYPE_CHECKING

from tpudata.errors import TpudataError

if TYPE_CHECKING:
    from tpudata.devices.tpu_compiler.step_cost import StepCost


def compile_step(flags: argparse.Namespace) -> StepCost:
    """Compile the training step of `--model` for `--tpu`, and return its cost; each host feeds `--batch-size` records a step.

    Raises:
        RehearsalError: the TPU would reject the step.
        TpudataError: the model does not fit the dataset, or the step was not compiled; the message says why.
    """
    # The compiler needs no chip, but jax would start the chips of this machine.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tpudata.devices.tpu_compiler.compiler import explain_missing_compiler
    from tpudata.estimator import ModeKeys, check_tpu_compatibility
    from tpudata.estimator.tpu_check.result import raise_if_rejected
    from tpudata.train.job import prepare_job
    from tpudata.train.options.flags import parse_options

    if (missing := explain_missing_compiler()) is not None:
        raise TpudataError(f"--tpu {flags.tpu.name}: {missing}")
    with tempfile.TemporaryDirectory(prefix="tpudata-bench-") as folder:
        job = prepare_job(parse_options([*_make_train_flags(flags), f"--model-dir={folder}/model"], "tpudata bench"))
        findings = check_tpu_compatibility(job.estimator, {ModeKeys.TRAIN: job.training_input}, tpu=flags.tpu.name)
        raise_if_rejected(findings, [ModeKeys.TRAIN])
    if not findings.costs:
        reasons = "; ".join(str(finding) for finding in findings)
        raise TpudataError(
            f"--tpu {flags.tpu.name}: the step was not compiled for it ({reasons}). Omit --tpu and --model."
        )
    # There is one cost, since there is one mode and one TPU.
    return findings.costs[0]


def _make_train_flags(flags: argparse.Namespace) -> list[str]:
    """Return the flags of `tpudata train` that rehearse the step on the records that this command feeds."""
    options = {
        "model": flags.model,
        "data": flags.folder,
        "train-split": flags.split,
        # Here --batch-size is the batch of one host, in `tpudata train` the batch of all hosts.
        "batch-size": flags.batch_size * flags.tpu.hosts,
        "image-size": None if flags.image_size is None else "x".join(map(str, flags.image_size)),
        "crop": flags.crop,
        "sequence-length": flags.sequence_length,
    }
    words = [f"--{name}={setting}" for name, setting in options.items() if setting is not None]
    words += [f"--{name}" for name in ("augment", "truncate") if getattr(flags, name)]
    return [
        *words,
        *(f"--param={setting}" for setting in flags.param),
        *(f"--pad={name}={length}" for name, length in flags.pad),
        "--mode=train",
        "--rehearse",
        f"--tpu={flags.tpu.name}",
    ]
