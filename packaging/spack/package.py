# SPDX-License-Identifier: MIT
# memo for Spack: a package of a repository of your own.  MEMO_URL is the git repository of memo.
import os

from spack.package import *


class Memo(MakefilePackage):
    """Memory planning, swapping and sequence parallelism for transformer trainers in C and CUDA."""

    git = os.environ.get("MEMO_URL", "")
    license("MIT")

    version("main", branch="main")
    version("0.5.0", tag="v0.5.0")
    version("0.4.0", tag="v0.4.0")
    version("0.3.0", tag="v0.3.0")
    version("0.2.0", tag="v0.2.0")

    variant("lp_solve", default=False, description="Planners may use lp_solve")

    depends_on("c", type="build")
    depends_on("lpsolve", when="+lp_solve")

    def build(self, spec, prefix):
        pass  # headers

    def install(self, spec, prefix):
        make("install", "PREFIX={0}".format(prefix))

    def setup_dependent_build_environment(self, env, dependent_spec):
        if self.spec.satisfies("+lp_solve"):
            env.append_flags("CPPFLAGS", "-DMEMO_LP_SOLVE")
