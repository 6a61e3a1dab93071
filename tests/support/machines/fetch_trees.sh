#!/bin/sh
# Trees of /sys and /proc that others keep for their tests, from Debian source packages: hwloc, procfs, util-linux.
#
# Where they come from is what this system's apt has for Debian already; a list of sources of its own and a state folder
# of its own, so that nothing of the system changes.  They lie in build/trees/PACKAGE afterwards.
set -eu
cd "$(dirname "$0")/../../.."
out=$PWD/build/trees
command -v apt-get >/dev/null && command -v dpkg-source >/dev/null || { echo "needs apt-get and dpkg-source (dpkg-dev)" >&2; exit 77; }
apt=$out/.apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial"

# The repositories of Debian's own main that this system knows, as sources.
# The shortest name first: the release itself, then its updates, for of two equal versions apt takes the first.
apt-get indextargets --format '$(ORIGIN) $(COMPONENT) deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sed -n 's/^Debian main //p' | sort -u | awk '{ print length($3), $0 }' | sort -n | cut -d" " -f2- >"$apt/sources.list"
[ -s "$apt/sources.list" ] || { echo "this system's apt knows no Debian repository" >&2; exit 77; }
# A file, for options would be split at the blanks of a path.
cat >"$apt/apt.conf" <<END
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt";
APT::Sandbox::User "root";
END
export APT_CONFIG="$apt/apt.conf"
apt-get -qq update

for package in ${TREES:-hwloc golang-github-prometheus-procfs util-linux}; do
    [ -d "$out/$package" ] && continue
    rm -rf "$out/.part"
    mkdir "$out/.part"
    (cd "$out/.part" && apt-get -qq source "$package" >&2) || { echo "$package: cannot be had here" >&2; continue; }
    mv "$out/.part"/*/ "$out/$package"
    rm -rf "$out/.part"
done
rm -rf "$out/.part"
ls -d "$out"/*/
