# SPDX-License-Identifier: MIT
# memo for conan 2:  conan create packaging/conan
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake
from conan.tools.files import copy, load
from conan.tools.scm import Git


class Memo(ConanFile):
    name = "memo"
    description = "Memory planning, swapping and sequence parallelism for transformer trainers in C and CUDA"
    license = "MIT"
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeToolchain"
    options = {"lp_solve": [True, False]}
    default_options = {"lp_solve": False}
    no_copy_source = True

    def root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        numbers = re.findall(r"#define MEMO_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", load(self, os.path.join(self.root(), "memo.h")))
        self.version = ".".join(numbers)

    def export_sources(self):
        for pattern in "memo*.h", "memo_cuda.cuh", "extras/*", "cmake/*", "CMakeLists.txt", "memo.pc.in", "LICENSE":
            copy(self, pattern, self.root(), self.export_sources_folder)

    def source(self):
        if os.environ.get("MEMO_URL"):
            Git(self).clone(os.environ["MEMO_URL"], target="memo", args=["--branch", f"v{self.version}", "--depth", "1"])

    def folder(self):
        cloned = os.path.join(self.source_folder, "memo")
        return cloned if os.path.isdir(cloned) else self.source_folder

    def build(self):
        CMake(self).configure(build_script_folder=self.folder())

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.folder(), os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        # memo's own CMake package has the targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "memo")]
        self.cpp_info.includedirs = ["include", os.path.join("include", "memo")]
        self.cpp_info.libdirs, self.cpp_info.bindirs = [], []
        if self.settings.os != "Windows":
            self.cpp_info.system_libs = ["pthread", "m"]
        if self.options.lp_solve:
            self.cpp_info.defines = ["MEMO_LP_SOLVE"]
            self.cpp_info.system_libs.append("lpsolve55")
