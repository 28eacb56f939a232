#!/usr/bin/env bash
# Print the Secrets that deploy/k8s refers to, with fresh random values, once:
#   deploy/k8s/secrets.sh | kubectl apply -f -
# With a Redis of your own, its password and URL: REDIS_PASSWORD=... REDIS_URL=rediss://:...@host:6379/0.
# With overlays/sandbox, whose env servers show the same key from a namespace of their own: SANDBOX=yes.
# Keys say what is in them; pods mount each under the name of the variable that it stands for, in /run/secrets.
set -euo pipefail

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
quote() { printf "'%s'" "${1//\'/\'\'}"; } # as a YAML string

secret() { # NAME KEY VALUE [KEY VALUE]...: builtins alone, so that no process list shows a value
    printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\nstringData:\n' "$1" "${namespace:-gymfleet}"
    shift
    while [ $# -gt 0 ]; do
        printf '  %s: %s\n' "$1" "$(quote "$2")"
        shift 2
    done
}

password=${REDIS_PASSWORD:-$(random)}
url=${REDIS_URL:-redis://:$password@redis:6379/0}
case $url in rediss://*) tls=enable ;; *) tls=disable ;; esac # as KEDA's scaler calls it
secret redis url "$url" password "$password" tls "$tls" requirepass.conf "requirepass $password"
secret env-gateway signing-secret "$(random)" api-key "$(random)"
secret rollout api-key "$(random)"
secret reward api-key "$(random)"
secret trainer api-key "$(random)"
env_key=$(random) # what gateways show to the env servers
secret env-server api-key "$env_key"
if [ -n "${SANDBOX:-}" ]; then
    namespace=gymfleet-sandbox secret env-server api-key "$env_key"
fi
