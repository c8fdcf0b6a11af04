# SPDX-License-Identifier: MIT
"""Builds the wheel and the source archive of memo_plan for pip (PEP 517).

The headers come from the repository; a source archive has them in its folder headers/.  A wheel has one shared object,
which ctypes loads, so it works with every Python 3.  CC, CFLAGS and LDFLAGS are the user's.
"""
import base64
import hashlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "headers" if (HERE / "headers").is_dir() else HERE.parent
FROM_ROOT = ("memo.h", "memo_plan.h", "extras/memo_look.h", "examples/pytorch/snapshot_to_trace.py", "LICENSE",
             "extras/memo_pack.h", "examples/tools/plan_proof.h", "examples/tools/check_proof.py")
FROM_HERE = ("pyproject.toml", "build_backend.py", "README.md", "memo_plan/__init__.py", "memo_plan/memo_plan.c")

VERSION = ".".join(re.findall(r"#define MEMO_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", (ROOT / "memo.h").read_text()))
METADATA = (f"Metadata-Version: 2.1\nName: memo-plan\nVersion: {VERSION}\nLicense: MIT\nRequires-Python: >=3.8\n"
            "Summary: Offsets for buffers with known sizes and lifetimes: proven optimal, or with a gap\n"
            "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text("utf-8"))


def compile_library(target):
    flags = shlex.split(os.environ.get("CFLAGS", "")), shlex.split(os.environ.get("LDFLAGS", ""))
    command = [*shlex.split(os.environ.get("CC", "cc")), "-std=c99", "-O2", "-fPIC", "-shared", f"-I{ROOT}", *flags[0],
               str(HERE / "memo_plan" / "memo_plan.c"), "-o", str(target), *flags[1], "-lpthread", "-lm"]
    try:
        subprocess.run(command, check=True)
    except OSError:  # not found, or PATH has a folder that this user may not read
        raise SystemExit(f"memo_plan: no C compiler ({command[0]}); CC=gcc would name one") from None
    except subprocess.CalledProcessError:
        raise SystemExit("memo_plan: the C compiler failed: " + shlex.join(command)) from None


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    info = f"memo_plan-{VERSION}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "libmemo_plan.so")
        compile_library(library)
        files = {"memo_plan/__init__.py": (HERE / "memo_plan" / "__init__.py").read_bytes(),
                 "memo_plan/snapshot_to_trace.py": (ROOT / FROM_ROOT[3]).read_bytes(),
                 "memo_plan/check_proof.py": (ROOT / "examples/tools/check_proof.py").read_bytes(),
                 "memo_plan/libmemo_plan.so": library.read_bytes(),
                 f"{info}/LICENSE": (ROOT / "LICENSE").read_bytes(),
                 f"{info}/METADATA": METADATA.encode(),
                 f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: memo_plan\nRoot-Is-Purelib: false\n"
                                  b"Tag: py3-none-%s\n" % platform.encode()}
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = f"memo_plan-{VERSION}-py3-none-{platform}.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    base = f"memo_plan-{VERSION}"
    with tarfile.open(pathlib.Path(sdist_directory, base + ".tar.gz"), "w:gz") as archive:
        for name in FROM_HERE:
            archive.add(HERE / name, f"{base}/{name}")
        for name in FROM_ROOT:
            archive.add(ROOT / name, f"{base}/headers/{name}")
        data = METADATA.encode()
        entry = tarfile.TarInfo(base + "/PKG-INFO")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return base + ".tar.gz"
