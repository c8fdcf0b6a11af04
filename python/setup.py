# SPDX-License-Identifier: MIT
"""What pyproject.toml cannot say: the sources lie in the repository above, in a source archive in headers/.

A wheel has one shared object, which ctypes loads, so it works with every Python 3.  CC, CFLAGS and LDFLAGS are the user's.
"""
import pathlib
import re
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        raise SystemExit("memo_plan: this setuptools builds no wheel; pip install wheel, or 'setuptools>=70.1'") from None

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "headers" if (HERE / "headers").is_dir() else HERE.parent
HEADERS = ("memo.h", "memo_plan.h", "extras/memo_look.h", "extras/memo_pack.h", "examples/tools/plan_proof.h")
MODULES = ("examples/pytorch/snapshot_to_trace.py", "examples/tools/check_proof.py")


def copy(name, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / name, target)


class Modules(build_py):
    def run(self):
        super().run()
        for name in MODULES + ("LICENSE",):
            copy(name, pathlib.Path(self.build_lib, "memo_plan", pathlib.Path(name).name))


class Library(build_ext):
    def get_ext_filename(self, name):
        return name.replace(".", "/") + ".so"


class Archive(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in HEADERS + MODULES + ("LICENSE",):
            copy(name, pathlib.Path(base_dir, "headers", name))


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    version=".".join(re.findall(r"#define MEMO_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", (ROOT / "memo.h").read_text())),
    license="MIT",
    packages=["memo_plan"],
    include_package_data=False,
    ext_modules=[Extension("memo_plan.libmemo_plan", ["memo_plan/memo_plan.c"], include_dirs=[str(ROOT)],
                           depends=[str(ROOT / name) for name in HEADERS], extra_compile_args=["-std=c99"], libraries=["pthread", "m"])],
    cmdclass={"build_py": Modules, "build_ext": Library, "sdist": Archive, "bdist_wheel": Wheel},
)
