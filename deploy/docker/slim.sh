#!/bin/sh
# Take out of a virtual environment what its services never use, and compile the rest. Run in its site-packages.
#   slim.sh VENV
set -eu
venv=$1

find . -type d -name tests '(' -path './numpy/*' -o -path './sympy/*' ')' -prune -exec rm -rf {} +
# What others are compiled against numpy with.
[ -d torch ] || rm -rf numpy/_core/include numpy/_core/lib numpy/random/lib numpy/distutils numpy/f2py
# What textworld would compile games with that it makes up itself.
rm -rf textworld/thirdparty/inform7-*
# webshop reads English titles.
find . '(' -name morphmodel_dutch.pgz -o -name morphmodel_ger.pgz ')' -delete
# Symbols for debuggers. (What stands in *.libs was patched for its place, and is left as it is; so is torch's family.)
[ -d torch ] || find . -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

# Of Java the modules that ScienceWorld names.
jar=scienceworld/scienceworld.jar
if [ -f "$jar" ]; then
    modules=$(jdeps --multi-release 17 --ignore-missing-deps --print-module-deps "$jar")
    jlink --add-modules "$modules" --strip-debug --no-man-pages --no-header-files --compress=2 --output "$venv/java"
    ln -s ../java/bin/java "$venv/bin/java"
fi

# Hashes instead of times in compiled files: the same sources give the same bytes, and they hold on a read-only disk.
# Some packages carry files for other versions of Python: what does not compile is left as it is.
python3 -m compileall -qq -j 0 -x /lexers/ --invalidation-mode unchecked-hash . || true
