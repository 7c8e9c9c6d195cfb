#!/usr/bin/env bash
# Runs benches one after the other and, when there are several, prints a table at the end.
#
#   e2e/bench/run.sh                              all of them
#   e2e/bench/run.sh submit-durable -- --quick    one; what follows `--` goes to the bench
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

names=()
while (($#)) && [[ $1 != -- ]]; do
    names+=("$1")
    shift
done
(($#)) && shift
if ((${#names[@]} == 0)); then
    mapfile -t names < <(sed -n '/^\[\[bench\]\]/,/^name/ s/^name = "\(.*\)"/\1/p' e2e/Cargo.toml)
fi

run() { cargo bench --quiet -p meridian-e2e --bench "$@"; }
if ((${#names[@]} == 1)); then
    run "${names[0]}" -- "$@"
    exit
fi

# Of a bench's last line, one field.
field() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" <<<"$2"; }

figures=(median_ms min_ms cpu_s rss_mib valid)
table=$(printf '%-16s' bench && printf '%12s' "${figures[@]}")
for name in "${names[@]}"; do
    last=$(run "$name" -- "$@" | tee /dev/stderr | tail -n 1)
    table+=$'\n'$(printf '%-16s' "$name")
    for figure in "${figures[@]}"; do
        table+=$(printf '%12s' "$(field "$figure" "$last")")
    done
done
printf '\n%s\n' "$table"
