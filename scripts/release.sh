#!/bin/sh
# release.sh - makes a release: the version in every template of src/ and header of extras/, the changelog, a commit, a tag, an archive and its checksum.
#
#   sh scripts/release.sh VERSION TEMPLATE_OR_HEADER...
#
# Runs in the root of a git repository without uncommitted changes.  Nothing is pushed.
set -eu

refuse() { echo "make release: $*" >&2; exit 2; }

version=$1
shift
echo "$version" | grep -Eqx '([0-9]+\.){2}[0-9]+' || refuse "VERSION: not three numbers ($version); 1.2.3 would work"
[ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ] ||
    refuse "this folder is not the root of a git repository; clone one"
[ -z "$(git status --porcelain)" ] || refuse "there are uncommitted changes; commit them first"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || refuse "VERSION: the tag v$version exists; choose another"
grep -qx '## Unreleased' docs/changelog.md || refuse "docs/changelog.md: there is no line '## Unreleased'; add one"

IFS=. read -r major minor patch <<END
$version
END
sed -i -e "s/^\(#define MEMO_VERSION_MAJOR\) .*/\1 $major/" -e "s/^\(#define MEMO_VERSION_MINOR\) .*/\1 $minor/" \
    -e "s/^\(#define MEMO_VERSION_PATCH\) .*/\1 $patch/" \
    -e "s/^\(#if MEMO_VERSION_MAJOR !=\) .*/\1 $major || MEMO_VERSION_MINOR != $minor/" "$@"
scripts/amalgamate
# Recipes, and the lines of packaging/README.md; the first version of Spack's list is the new one.
if [ -d packaging ]; then
    sed -i "s/\"version\": \"[0-9.]*\"/\"version\": \"$version\"/" packaging/vcpkg/vcpkg.json
    sed -i "s/GIT_TAG v[0-9.]*)/GIT_TAG v$version)/" packaging/README.md
    sed -i "0,/^\( *version(\"\)\([0-9.]*\)\(\", tag=\"v\)[0-9.]*\")/s//\1$version\3$version\")\n&/" packaging/spack/package.py
fi
sed -i "s/^## Unreleased\$/&\n\n## $version - $(date -u +%Y-%m-%d)/" docs/changelog.md
git commit -qam "Release $version"
git tag -a -m "memo $version" "v$version"

archive=memo-$version.tar.gz
mkdir -p build
git archive --prefix="memo-$version/" -o "build/$archive" "v$version"
(cd build && sha256sum "$archive" >"$archive.sha256" && cat "$archive.sha256")
echo "tagged v$version; publish it with git push --follow-tags, and build/$archive with its checksum"
