"""The two bash programs inside a sandbox.

The supervisor starts the agent's shell, and runs the task's programs outside it. The agent's supervisor is the first
process of its process namespace; a second supervisor runs the checks, in a root that the agent never controlled. A
supervisor holds a capability that none of the processes it starts has. So the kernel lets none of them trace it, read
its memory or open its files, although they are root too; and nothing inside can send it a signal. Its requests come
through a pipe, as words ended by NUL:

    SEQUENCE shell 0                  ->  SEQUENCE:PID of a new shell
    SEQUENCE run COUNT WORD...        ->  SEQUENCE:EXIT CODE

Before all of these it answers 0:0, to signal that it is ready.

The agent's shell receives SEQUENCE COMMAND and answers SEQUENCE:EXIT CODE through
pipes that its commands do not inherit. It answers from the loop's condition, which
a stray `continue` reaches too.
"""

from typing import Final

SHELL: Final = r"""
shopt -s expand_aliases
_gymfleet_resume() { return "$1"; }
_gymfleet_sequence=0 _gymfleet_code=0
while
    _gymfleet_code=$?
    printf '%s:%s\n' "$_gymfleet_sequence" "$_gymfleet_code" >&8
    IFS= read -r -d '' -u 9 _gymfleet_sequence && IFS= read -r -d '' -u 9 _gymfleet_command
do
    _gymfleet_resume "$_gymfleet_code"
    eval "$_gymfleet_command" </dev/null 8>&- 9<&-
done
"""

"""`bash -c SHELL`: commands on descriptor 9, answers on 8."""

SUPERVISOR: Final = r"""
requests=$1 answers=$2 commands=$3 results=$4 output=$5
shell_limits=$6 program_limits=$7 shell=$8 shell_path=$9 program_path=${10}
cd / || exit 1
exec {errors}>&2 2>/dev/null
umask 022
kept=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setuid,+setgid
drop=(setpriv --bounding-set="$kept" --inh-caps=-all --ambient-caps=-all)
start_shell() {
    exec 9<&"$commands" 8>&"$results" >&"$output" 2>&1 </dev/null
    exec {requests}<&- {answers}>&- {commands}<&- {results}>&- {output}>&- {errors}>&-
    eval "ulimit $shell_limits"
    PATH=$shell_path exec "${drop[@]}" bash -c "$shell" bash
}
start_program() {
    exec >&"$errors" 2>&1 </dev/null
    exec {requests}<&- {answers}>&- {commands}<&- {results}>&- {output}>&- {errors}>&-
    eval "ulimit $program_limits"
    PATH=$program_path exec "${drop[@]}" "$@"
}
printf '0:0\n' >&"$answers"
while IFS= read -r -d '' -u "$requests" sequence &&
    IFS= read -r -d '' -u "$requests" kind && IFS= read -r -d '' -u "$requests" count; do
    words=()
    for ((i = 0; i < count; i++)); do
        IFS= read -r -d '' -u "$requests" word
        words+=("$word")
    done
    if [ "$kind" = shell ]; then
        start_shell &
        printf '%s:%s\n' "$sequence" "$!" >&"$answers"
    else
        start_program "${words[@]}" &
        wait "$!"
        printf '%s:%s\n' "$sequence" "$?" >&"$answers"
    fi
done
"""
"""`bash -c SUPERVISOR supervisor`, followed by the descriptors and texts that its first lines name."""


def limits(*, memory_mib: int, disk_mib: int, processes: int) -> str:
    """Options of bash's `ulimit` for all processes other than the supervisor."""
    return f"-c 0 -n 1024 -f {disk_mib * 1024} -v {memory_mib * 1024} -u {processes} -t 300"
