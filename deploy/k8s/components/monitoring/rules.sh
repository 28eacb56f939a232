#!/usr/bin/env bash
# Write rules.yaml: deploy/monitoring/alerts.yml, which Prometheus reads as it is, as a PrometheusRule for its operator.
set -euo pipefail
cd "$(dirname "$0")"

{
    cat <<'HEAD'
# Made by rules.sh from deploy/monitoring/alerts.yml: change that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gymfleet
  namespace: gymfleet
spec:
HEAD
    grep -v '^---$' ../../../monitoring/alerts.yml | sed 's/^./  &/'
} >rules.yaml
