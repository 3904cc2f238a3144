"""How tpudata is built and installed.

It stays a setup.py: Dataflow builds the package on its workers from the file that `--setup_file` names. The least versions of
packages are those that `scripts/test_versions lowest` installs and runs; where one is higher than this code needs, its line says
why.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def read(name: str) -> str:
    """Return the text of a file next to this one, or nothing if a source distribution lacks it."""
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def version() -> str:
    """Return the version, read from the source: importing the package here would require its dependencies."""
    match = re.search(r'^__version__ = "([^"]+)"$', read("tpudata/_version.py"), re.MULTILINE)
    if match is None:
        raise RuntimeError('tpudata/_version.py has no line `__version__ = "..."`')
    return match[1]


def index_page(readme: str) -> str:
    """Return the README for the page of a package index, which has neither the files of this repository nor its pictures."""
    without_pictures = re.sub(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n\n?", "", readme, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", without_pictures)


class BuildWithPages(build_py):  # type: ignore[misc]
    """Copies the pages of docs/ into the package, for `tpudata help`; a clone has them next to it."""

    def run(self) -> None:
        """Build the packages, and copy the pages."""
        super().run()
        if not self.editable_mode:
            for page in sorted((ROOT / "docs").glob("*/*.md")):
                copy = Path(self.build_lib, "tpudata", "docs", page.parent.name, page.name)
                self.mkpath(str(copy.parent))
                self.copy_file(str(page), str(copy))


BASE = [
    "apache-beam>=2.76,<3",  # 2.67 to 2.75 leak memory on workers (apache/beam#39406)
    "google-auth>=2.26,<3",
    "google-crc32c>=1.6,<2",  # the first with wheels for Python 3.12
    "numpy>=1.26,<3",  # the first for Python 3.12
    "pillow>=12.1.1,<13",  # Beam's
    "pyarrow>=16.1",  # the first for NumPy 2
    "PyYAML>=6,<7",  # data.yaml of YOLO, and Beam's
    "requests>=2.32.4,<3",  # Beam's
    "shtab>=1.9,<2",  # the first with fish
    "tqdm>=4.66,<5",
    "urllib3>=2.0.2,<3",  # gs://; 1.x takes a body that was cut for a whole one
    "zstandard>=0.22,<1",
]

# TensorBoard is no dependency of TensorFlow any more, and reading the training curves needs it.
# PyYAML reads the files of `tpudata train --config`.
TENSORFLOW = ["tensorflow>=2.20,<2.22", "tf_keras>=2.20,<2.22", "tensorboard>=2.20,<2.22", "PyYAML>=6,<7"]

# JAX runs steps on several devices: TPU chips, GPUs, CPU devices. The bounds are those of the versions that were run: 0.10.2
# (Python 3.11 has no later one) and 0.12 (Python 3.13). libtpu, the TPU's runtime and compiler, exists for Linux only.
_JAX = ">=0.10.2,<0.13"
JAX = [f"jax{_JAX}"]
TPU = [
    *TENSORFLOW,
    f"jax[tpu]{_JAX}; sys_platform == 'linux' and platform_machine == 'x86_64'",
    f"jax{_JAX}; sys_platform != 'linux' or platform_machine != 'x86_64'",
]

# What Beam needs for Dataflow.
GCP = ["apache-beam[gcp]>=2.76,<3"]

# Other stores, each by a separate package such as s3fs (s3://) or adlfs (abfs://).
FSSPEC = ["fsspec>=2024.10"]

# Images from phones (HEIC); AVIF and JPEG 2000 are in Pillow. Its wheels are GPLv2, by the x265 in them.
HEIF = ["pillow-heif>=0.22,<2"]

# Polygons as masks, by COCO's rule for the pixels at an edge.
ANNOTATIONS = ["pycocotools>=2.0.11,<3"]

# Tokenizers with a file.
TEXT = ["jinja2>=3.1.5,<4", "sentencepiece>=0.2.2,<0.3", "tokenizers>=0.22,<0.24"]

# scikit-learn brings the 1,797 digits that scripts/quickstart learns; cryptography the certificate of scripts/gcs_emulator.
QUICKSTART = [*TENSORFLOW, "cryptography>=42", "scikit-learn>=1.4,<2"]

# The site of scripts/docs. Flags are read from the parsers, the API from docstrings without importing TensorFlow.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.29,<2"]

TEST = [
    *ANNOTATIONS,
    *HEIF,
    *TEXT,
    # Schemas of workflows, forms and citations.
    "check-jsonschema>=0.33,<1",
    "cryptography>=42",
    # Google's own client of gs://, next to ours.
    "google-cloud-storage>=2.18.2,<4",
    # Grain, like tfrecord below, is here to read what is written: both are a few MB.
    "grain>=0.2.12,<0.3",
    "hypothesis>=6.100,<7",
    *JAX,
    # libtpu compiles rehearsed steps for TPUs: a wheel of 213 MB, 684 MB unpacked.
    f"jax[tpu]{_JAX}; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "moto[server]>=5,<6",
    "mypy>=1.15,<3",
    # Drives a Chromium of the machine, which opens the site and a report.
    "playwright>=1.49,<2",
    "pytest>=8.2,<10",
    "pytest-xdist>=3.6,<4",
    # The formatter's style changes between minor versions, and scripts/lint checks it.
    "ruff==0.17.*",
    "s3fs>=2025.2",
    "scikit-learn>=1.4,<2",
    # Next to what reads MATLAB files.
    "scipy>=1.11,<2",
    "tensorflow-datasets>=4.9.7,<5",
    "tfrecord>=1.14.6,<2",
    "twine>=6,<8",
]

setup(
    name="tpudata",
    version=version(),
    description="Turns images and text into TFRecord shards and feeds them to TPUs",
    long_description=index_page(read("README.md")),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords="tpu tfrecord dataset tensorflow jax apache-beam tpuestimator tf.data",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    # 3.14 for conversion: TensorFlow has no version for it.
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["tpudata", "tpudata.*", "beam_jobs", "beam_jobs.*"]),
    package_data={"tpudata": ["py.typed", "migrate/v1_names.txt"], "beam_jobs": ["py.typed"]},
    install_requires=BASE,
    extras_require={
        "tensorflow": TENSORFLOW,
        "tpu": TPU,
        "gcp": GCP,
        "text": TEXT,
        "fsspec": FSSPEC,
        "annotations": ANNOTATIONS,
        "heif": HEIF,
        "quickstart": QUICKSTART,
        "docs": DOCS,
        "test": TEST,
        # Without HEIC, for its licence.
        "all": sorted({*TENSORFLOW, *GCP, *TEXT, *FSSPEC, *ANNOTATIONS}),
        # For work on tpudata itself: 3.3 GB.
        "dev": sorted({*TENSORFLOW, *GCP, *DOCS, *TEST}),
    },
    cmdclass={"build_py": BuildWithPages},
    entry_points={"console_scripts": ["tpudata = tpudata.cli:main"]},
)
