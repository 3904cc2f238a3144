"""History of a model's folder: under which configurations it was trained, and how many records they fed.

`train_history.json` is {"sections": [{"first_step", "position", "order_batch_size", "configuration"}, ...]}, in the order in which
they were written. A section is in force from its first step on, until a later one begins; one that trained nothing, because the run
was killed before its first checkpoint, is kept, too.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tpudata.console.tables import count_text
from tpudata.errors import TpudataError, UsageError
from tpudata.storage import storage_for
from tpudata.train.options.train_options import TrainOptions
from tpudata.train.outputs.record import CONFIG_NAME, Configuration, write_json

HISTORY_NAME = "train_history.json"
# Options that do not change what is trained.
_IGNORED_OPTIONS = {
    "model_dir",
    "mode",
    "allow_other_data",
    "checkpoint",
    "output",
    "prompt",
    "num_predictions",
    "continuous",
    "continuous_timeout",
    "rehearse",
    "tpu",
    "tpu_effort",
    "feeding",
    "json",
    "coordinator_address",
    "process_id",
}


@dataclasses.dataclass(frozen=True)
class Section:
    """Steps that are trained under one configuration.

    Attributes:
        first_step: step after which it begins.
        position: number of records in the order of training that come before its first batch.
        order_batch_size: batch size of the order that the records follow; batches of another size are cut from the same order.
        configuration: the record of the run, see tpudata.train.outputs.record.
    """

    first_step: int
    position: int
    order_batch_size: int
    configuration: Configuration

    @property
    def batch_size(self) -> int:
        """Records of a step."""
        return int(self.configuration["options"]["batch_size"])

    def position_at(self, step: int) -> int:
        """Return the number of records in the order that come before the batch of a step."""
        return self.position + (step - self.first_step) * self.batch_size


@dataclasses.dataclass(frozen=True)
class History:
    """All sections of a model's folder, in the order in which they were written."""

    sections: tuple[Section, ...] = ()

    @classmethod
    def read(cls, model_dir: str) -> History:
        """Read the history of a folder; without train_history.json, it falls back to the one section of train_config.json.

        Raises:
            TpudataError: a file is damaged.
            StorageError: a file cannot be read.
        """
        storage = storage_for(model_dir)
        for name, parse in ((HISTORY_NAME, _parse_sections), (CONFIG_NAME, _parse_configuration)):
            path = storage.join(model_dir, name)
            if storage.stat(path) is None:
                continue
            try:
                return cls(parse(json.loads(storage.read(path))))
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise TpudataError(
                    f"{path} is damaged, so the records of the next batch are unknown. Restore it; or remove it, and training "
                    "begins at the record of the step times the batch size."
                ) from error
        return cls()

    def find_previous_section(self, step: int) -> Section | None:
        """Return the section that trained the last step before `step`, or None."""
        return next((section for section in reversed(self.sections) if section.first_step < step), None)

    def find_section(self, step: int, configuration: Configuration) -> Section:
        """Return the section that trains under a configuration after `step` steps: the current one if it fits, or a new one."""
        configuration = json.loads(json.dumps(configuration))
        present = next((section for section in reversed(self.sections) if section.first_step <= step), None)
        is_stale = any(section.first_step > step for section in self.sections)
        if present is not None and not is_stale and not list_differences(present.configuration, configuration):
            return present
        batch_size = int(configuration["options"]["batch_size"])
        before = self.find_previous_section(step)
        if before is None:
            return Section(step, step * batch_size, batch_size, configuration)
        if not is_same_data(before.configuration, configuration):
            return Section(step, 0, batch_size, configuration)
        is_same_order = _get_seed(before.configuration) == _get_seed(configuration)
        order_batch_size = before.order_batch_size if is_same_order else batch_size
        return Section(step, before.position_at(step), order_batch_size, configuration)

    def write(self, model_dir: str, section: Section) -> None:
        """Add a section to the file, unless it is already recorded."""
        if section in self.sections:
            return
        sections = [dataclasses.asdict(stored_section) for stored_section in (*self.sections, section)]
        write_json(model_dir, HISTORY_NAME, {"sections": sections})


def is_same_data(before: Configuration, now: Configuration) -> bool:
    """Return whether two configurations train on the same records; one of an earlier version has fewer facts about them."""
    facts = ("split_digest",) if "split_digest" in before["dataset"] else ("fingerprint", "records")
    return all(before["dataset"][fact] == now["dataset"][fact] for fact in facts)


def require_same_data(options: TrainOptions, before: Configuration, now: Configuration, step: int) -> None:
    """Raise UsageError if training would continue on another dataset and the user does not allow it.

    Raises:
        UsageError: the records differ from those of the previous section.
    """
    if options.allow_other_data or is_same_data(before, now):
        return
    data_before, data_now = (
        f"{configuration['options']['data']} with "
        f"{count_text(configuration['dataset']['records'].get(configuration['options']['train_split'], 0), 'record')} in "
        f"{configuration['options']['train_split']}, "
        f"{configuration['dataset'].get('split_digest', configuration['dataset']['fingerprint'])}"
        for configuration in (before, now)
    )
    raise UsageError(
        f"{options.model_dir}: up to step {step} it was trained on other records (got {data_now}, expected {data_before}). Pass "
        "the dataset of before, another --model-dir, or --allow-other-data to continue on this one."
    )


def list_differences(before: Configuration, now: Configuration) -> list[str]:
    """Return a line for each setting that differs between two configurations: `NAME=BEFORE -> NOW`."""
    lines = []
    for group, prefix in (("options", ""), ("params", "params."), ("dataset", "dataset."), ("versions", "versions.")):
        old, new = before.get(group, {}), now.get(group, {})
        for name in [*new, *(name for name in old if name not in new)]:
            is_compared = group != "options" or name not in {*_IGNORED_OPTIONS, "params"}
            # Settings that an old record lacks count as unset.
            if is_compared and old.get(name) != new.get(name) and (name in old or new[name] not in (None, False)):
                lines.append(f"{prefix}{name}={json.dumps(old.get(name))} -> {json.dumps(new.get(name))}")
    return lines


def explain_differences(before: Section, now: Section) -> str:
    """Describe the settings that differ from the previous section, and the effect on the records; "" if none differ."""
    lines = list_differences(before.configuration, now.configuration)
    if not lines:
        return ""
    position = f"record {now.position:,} of its order" if now.position else "its first record"
    if not is_same_data(before.configuration, now.configuration):
        lines.append(f"the other dataset is read from {position} on")
    elif _get_seed(before.configuration) != _get_seed(now.configuration):
        lines.append(
            "the records have another order from here on: in this epoch, some come twice and others not at all"
        )
    elif before.batch_size != now.batch_size:
        lines.append(
            f"the order of the records stays that of batches of {now.order_batch_size}, and the next batch begins at {position}:"
            " no record is repeated or lost"
        )
    if _get_kept_records(before.configuration) != _get_kept_records(now.configuration):
        lines.append("the records in quarantine differ: in this epoch, some may come twice and others not at all")
    head = f"training continues after step {now.first_step} with other settings (before -> now):"
    return "\n  ".join((head, *lines))


def _get_seed(configuration: Configuration) -> object:
    return configuration["options"]["seed"]


def _get_kept_records(configuration: Configuration) -> object:
    return configuration["dataset"].get("kept_records")


def _parse_sections(content: Any) -> tuple[Section, ...]:
    sections = []
    for entry in content["sections"]:
        section = Section(
            entry["first_step"],
            entry["position"],
            entry["order_batch_size"],
            _check_configuration(entry["configuration"]),
        )
        numbers = (section.first_step, section.position, section.order_batch_size)
        if not all(type(number) is int and 0 <= number < 2**53 for number in numbers) or section.order_batch_size < 1:
            raise ValueError("a number is out of range")
        sections.append(section)
    return tuple(sections)


def _parse_configuration(content: Any) -> tuple[Section, ...]:
    configuration = _check_configuration(content)
    return (Section(0, 0, int(configuration["options"]["batch_size"]), configuration),)


def _check_configuration(configuration: Any) -> Configuration:
    """Return a configuration; raise ValueError, LookupError, TypeError or AttributeError if it is malformed."""
    options, dataset = configuration["options"], configuration["dataset"]
    is_whole = isinstance(options["batch_size"], int) and 0 < options["batch_size"] < 2**31
    is_text = isinstance(options["data"], str) and isinstance(options["train_split"], str)
    if not (is_whole and is_text and isinstance(options["seed"], int) and isinstance(dataset["records"], dict)):
        raise ValueError("a value has another type")
    _ = dataset["fingerprint"], configuration["params"].items(), configuration["versions"].items()
    return dict(configuration)
