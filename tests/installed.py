"""The built wheel works for somebody who has Python and pip alone: `make dist-check`.

    python tests/installed.py DIST CONSTRAINTS

Looks into the wheel and the source archive, installs the wheel into an environment of its own, in a folder outside of
the repository and with nothing else on the path, and runs `demo`, `fit` and `report` there. What that environment has
is written to DIST/sbom.json, a list of components (CycloneDX) with licences and dependencies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

MAX_BYTES = 1_000_000  # of the wheel
MAX_PACKAGES = 35  # of the core install where torch has no CUDA
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/counterpoise/py.typed", "tests/conftest.py")
RATINGS = "user_id,item_id,rating\n" + "".join(
    f"u{user},i{item},{1 + (user * item) % 5}\n" for user in range(40) for item in range(25) if (user + item) % 3
)


def check(fact: bool, text: str) -> None:
    """Print what holds; end where it does not."""
    print(("ok    " if fact else "FAILS ") + text, flush=True)
    if not fact:
        raise SystemExit(1)


def check_archives(folder: Path) -> Path:
    """The wheel, after a look into it and the source archive."""
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    check(len(wheels) == len(archives) == 1, f"one wheel and one source archive in {folder}")
    size = wheels[0].stat().st_size
    check(size < MAX_BYTES, f"the wheel has {size:,} bytes, fewer than {MAX_BYTES:,}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        information = f"{wheels[0].name.rsplit('-', 3)[0]}.dist-info/"
        outside = [name for name in wheel.namelist() if not name.startswith(("counterpoise/", information))]
    check(not outside, f"no file of the wheel is outside of the package {outside}")
    with tarfile.open(archives[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in NEEDED if name not in names]
    check(not missing, f"the source archive has what it takes to build and test {missing}")
    return wheels[0]


def write_components(python: Path, version: str, out: Path) -> None:
    """Write what an environment has, without pip and setuptools."""
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"], check=True)
    project = Path(__file__).parents[1] / "pyproject.toml"
    command = [
        "environment",
        "--pyproject",
        project,
        "--mc-type",
        "library",
        "--output-reproducible",
        "-o",
        out,
        python,
    ]
    subprocess.run([sys.executable, "-m", "cyclonedx_py", *command], check=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    found["metadata"]["component"]["version"] = version  # dynamic in pyproject.toml
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    check(len(found["components"]) > 10, f"{out} lists {len(found['components'])} components")


def main() -> None:
    """Check the archives, install the wheel, run it, list what it came with."""
    dist, constraints = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    wheel = check_archives(dist).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        venv.create(folder / "env", with_pip=True)
        scripts = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COUNTER"))}
        environment["PATH"] = str(scripts)  # neither make, git nor a compiler

        def run(*command: object) -> str:
            words = [str(scripts / str(command[0])), *map(str, command[1:])]
            ran = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")
            check(
                ran.returncode == 0,
                " ".join([Path(words[0]).name, *words[1:], *([ran.stderr] if ran.returncode else [])]),
            )
            return ran.stdout

        run("python", "-m", "pip", "install", "--quiet", "-c", constraints, wheel)
        listed = {
            row["name"]: row["version"] for row in json.loads(run("python", "-m", "pip", "list", "--format=json"))
        }
        packages = sorted(set(listed) - {"pip", "setuptools", "counterpoise"})
        cuda = any(package.startswith("nvidia") for package in packages)
        check(cuda or len(packages) <= MAX_PACKAGES, f"{len(packages)} packages besides: {' '.join(packages)}")
        home = run("python", "-c", "import counterpoise; print(counterpoise.__file__)").strip()
        check(Path(home).is_relative_to(folder), f"counterpoise {listed['counterpoise']} is imported from {home}")

        (folder / "ratings.csv").write_text(RATINGS, encoding="utf-8")
        run("counterpoise", "demo", "--out", "demo")
        run("counterpoise", "fit", "ratings.csv", "--threshold", 4, "--holdout", 0.2, "--out", "mine", "--quiet")
        run("counterpoise", "report", "mine", "--quiet")
        for page in ("demo/report.html", "mine/report.html"):
            check((folder / page).stat().st_size > 10_000, f"{page} was written")
        write_components(scripts / "python", listed["counterpoise"], dist / "sbom.json")


if __name__ == "__main__":
    main()
