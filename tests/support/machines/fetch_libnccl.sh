#!/bin/sh
# Two real libnccl for the tests that ask NCCL itself: one of each way to choose an interface (before and from 2.28 on).
set -eu
python=${PYTHON:-python3}
cd "$(dirname "$0")/../../.."
for version in ${NCCL_VERSIONS:-2.21.5 2.29.7}; do
    folder=build/nccl/$version
    [ -e "$folder/nvidia/nccl/lib/libnccl.so.2" ] && continue
    rm -rf "$folder.part"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --target "$folder.part" "nvidia-nccl-cu12==$version"
    rm -rf "$folder"
    mv "$folder.part" "$folder"
done
ls -d build/nccl/*/
