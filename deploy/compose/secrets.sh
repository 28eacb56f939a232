#!/usr/bin/env bash
# Make the stack's secrets, once: a file that is there is kept. `deploy/compose/secrets.sh [DIRECTORY]`;
# a directory other than deploy/compose/secrets goes to compose as GYMFLEET_COMPOSE_SECRETS.
set -euo pipefail

directory=${1:-${GYMFLEET_COMPOSE_SECRETS:-$(dirname "$0")/secrets}}

# Nobody else on this machine may pass the directory. The files themselves are readable, because compose mounts each
# into its containers as it is, and their users (999 for Redis, 10001 for gymfleet) are not this one.
mkdir -p "$directory"
chmod 0700 "$directory"
umask 0333

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

keep_or_make() { # NAME VALUE: a file is there whole or not at all
    [ -e "$directory/$1" ] && return
    local new
    new=$(mktemp -u "$directory/.$1.XXXXXX")
    printf '%s\n' "$2" >"$new" # builtins alone: no process list shows the value
    mv -n "$new" "$directory/$1"
    echo "secrets: made $directory/$1"
}

# Redis reads its password as a line of configuration, its clients as a part of the URL: one secret, two files.
password=$(random)
if [ -e "$directory/redis.conf" ]; then
    password=$(sed -n 's/^requirepass //p' "$directory/redis.conf")
fi
[ -n "$password" ] || { echo "secrets: error: $directory/redis.conf has no requirepass line" >&2; exit 1; }
keep_or_make redis.conf "requirepass $password"
keep_or_make redis_url "redis://:$password@redis:6379/0"

keep_or_make gateway_secret "$(random)"  # signs session ids
keep_or_make gateway_api_key "$(random)" # what agents, rollout and trainer show to the gateway
keep_or_make rollout_api_key "$(random)" # what callers show to the rollout service
keep_or_make env_api_key "$(random)"     # what gateways show to the env servers
keep_or_make reward_api_key "$(random)"  # what callers show to the reward service
keep_or_make trainer_api_key "$(random)" # what callers show to the trainer
