"""Packaging this installation of tpudata, for workers on other machines to install.

Stock containers of Beam have no `beam_jobs`. A wheel (PEP 427) is a zip of the packages next to a folder of metadata, so it is made
in the same way from a clone and from an installation, which has no setup.py.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import importlib.metadata
import importlib.util
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePath

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions, WorkerOptions

from beam_jobs.run.places import sees_local_files
from tpudata._version import __version__
from tpudata.errors import UsageError
from tpudata.installation import format_install_command

_NAME = "tpudata"
_PACKAGES = ("beam_jobs", "tpudata")
_WHEEL = "Wheel-Version: 1.0\nGenerator: tpudata\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The earliest time that a zip can hold, for all files: equal sources give equal bytes.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@contextlib.contextmanager
def ship_package(options: PipelineOptions) -> Iterator[PipelineOptions]:
    """Yield options that have the workers of a runner install this package, unless they are processes of this machine.

    An image of `--sdk_container_image` or `--environment_config` is expected to have this package. A `--setup_file` or
    `--extra_package` of another package is also shipped; if one of them is of this package, the options are yielded unchanged.

    Args:
        options: options of the pipeline, which are not changed.

    Raises:
        UsageError: this package is not installed, so its requirements are unknown.
    """
    if sees_local_files(options) or _has_image(options) or _brings_this_package(options.view_as(SetupOptions)):
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="tpudata-package-") as folder:
        shipped_options = copy.deepcopy(options)
        setup = shipped_options.view_as(SetupOptions)
        setup.extra_packages = [*(setup.extra_packages or []), str(build_wheel(Path(folder)))]
        yield shipped_options


def describe_network_problem(options: PipelineOptions) -> str:
    """Return why workers may fail to install what this package requires, and the fix; empty if no reason is known.

    Args:
        options: options of the pipeline.
    """
    # None if no flag is passed: then workers have public addresses.
    has_public_ips = options.view_as(WorkerOptions).use_public_ips
    # A prebuilt image is built elsewhere, on a machine with another network.
    image_has_package = _has_image(options) or bool(options.view_as(SetupOptions).prebuild_sdk_container_engine)
    if sees_local_files(options) or has_public_ips is not False or image_has_package:
        return ""
    return (
        "--no_use_public_ips: each worker installs tpudata's requirements from PyPI when it starts, and the job fails if its"
        " network has no way there, such as Cloud NAT. Pass --sdk_container_image=IMAGE of an image with tpudata, see"
        " `tpudata help dataflow`."
    )


def _has_image(options: PipelineOptions) -> bool:
    """Return whether options name a container image for the workers, which is expected to have this package."""
    worker = options.view_as(WorkerOptions)
    # The second is the old name of the first, which Beam still takes with a warning.
    images = worker.sdk_container_image, worker.worker_harness_container_image
    return any(images) or bool(options.view_as(PortableOptions).environment_config)


def _brings_this_package(setup: SetupOptions) -> bool:
    """Return whether --setup_file or a file of --extra_package installs this package on the workers."""
    packages = (PurePath(path).name for path in setup.extra_packages or [])
    is_our_setup = setup.setup_file and (Path(setup.setup_file).parent / _NAME / "__init__.py").is_file()
    return bool(is_our_setup) or any(name.startswith(f"{_NAME}-") for name in packages)


def build_wheel(folder: Path) -> Path:
    """Write a wheel of this package; return its path.

    Args:
        folder: folder of the wheel.

    Raises:
        UsageError: this package is not installed, so its requirements are unknown.
    """
    metadata = f"{_NAME}-{__version__}.dist-info"
    files = [(f"{package}/{name}", path.read_bytes()) for package in _PACKAGES for name, path in _list_files(package)]
    files += [(f"{metadata}/METADATA", _read_metadata().encode()), (f"{metadata}/WHEEL", _WHEEL.encode())]
    record = "".join(f"{name},sha256={_hash_content(content)},{len(content)}\n" for name, content in files)
    # RECORD lists itself without a hash and a size.
    files.append((f"{metadata}/RECORD", f"{record}{metadata}/RECORD,,\n".encode()))
    path = folder / f"{_NAME}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files:
            member = zipfile.ZipInfo(name, _ZIP_TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            # The upper 16 bits are the permissions of the file.
            member.external_attr = 0o644 << 16
            wheel.writestr(member, content)
    return path


def _list_files(package: str) -> Iterator[tuple[str, Path]]:
    """Yield the path below the package and the full path of each file of an installed package, except compiled ones."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path


def _read_metadata() -> str:
    """Return the core metadata that pip needs: name, version, requirements and extras; UsageError without an installation."""
    try:
        required = importlib.metadata.requires(_NAME) or []
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "The workers need this package, and it is not installed here, so what it requires is not known. Run"
            f" `{format_install_command()}`, or pass --setup_file=FILE of a clone."
        ) from None
    lines = ["Metadata-Version: 2.1", f"Name: {_NAME}", f"Version: {__version__}"]
    # The extras are included, so that on a worker that lacks one, the message names its packages.
    lines += [f"Requires-Dist: {requirement}" for requirement in required]
    lines += [
        f"Provides-Extra: {extra}" for extra in importlib.metadata.metadata(_NAME).get_all("Provides-Extra") or []
    ]
    return "\n".join(lines) + "\n"


def _hash_content(content: bytes) -> str:
    """Return the SHA-256 hash of a file as a wheel's RECORD lists it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
