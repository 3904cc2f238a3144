"""Installed packages: their versions, and the command that installs the packages of an extra.

tpudata is on no index, so each kind of installation has its own command.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable
from pathlib import Path

_NAME = "tpudata"


def find_installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions, by name, of those packages in `names` that are installed."""
    import importlib.metadata

    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def format_install_command(extra: str = "") -> str:
    """Return how to install tpudata with an extra here, such as `pip install -e '/home/me/tpudata[text]'`, for a message.

    It is a pip command, or one with words after it if the origin of this installation is unknown.

    Args:
        extra: name of an extra of setup.py; empty for tpudata without extras.
    """
    # Imported here: importing importlib.metadata takes longer than importing all of this package's errors.
    import importlib.metadata
    import json

    extra_suffix = f"[{extra}]" if extra else ""
    root = Path(__file__).resolve().parents[1]
    # Python imports tpudata from a clone.
    if (root / "setup.py").is_file():
        return f"pip install -e {shlex.quote(f'{root}{extra_suffix}')}"
    try:
        distribution = importlib.metadata.distribution(_NAME)
        # pip writes this file for an installation from a path or URL.
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = str(origin.get("url", ""))
    # The file may be damaged: not JSON, or not an object.
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return f"pip install {shlex.quote(f'PATH{extra_suffix}')}, where PATH is a clone of tpudata or a wheel of it"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info'].get('vcs', 'git')}+{url}@{origin['vcs_info'].get('commit_id', 'HEAD')}"
    if url:
        # A folder, a wheel or a repository, here or on a server.
        return f"pip install {shlex.quote(f'{_NAME}{extra_suffix} @ {url}')}"
    # An index (a private one) or a folder of wheels is not recorded as the origin, so name the packages of the extra themselves.
    marker = f'extra == "{extra}"'
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in distribution.requires or []
        if marker in requirement.replace("'", '"')
    ]
    if packages:
        return f"pip install {' '.join(map(shlex.quote, packages))}"
    return (
        f"pip install {shlex.quote(f'{_NAME}{extra_suffix}=={distribution.version}')}, from where tpudata was installed"
    )
