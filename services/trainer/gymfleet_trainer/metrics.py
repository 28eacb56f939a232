"""Prometheus metrics of the trainer."""

from typing import Final

from prometheus_client import Counter, Gauge

STEP: Final = Gauge("gymfleet_trainer_step", "Finished steps of reinforcement learning")
VERSION: Final = Gauge("gymfleet_trainer_policy_version", "The last policy version that went live")
PARITY: Final = Gauge("gymfleet_trainer_parity_mean_abs", "Mean |log-probability difference| of the last publish")
TOLERANCE: Final = Gauge("gymfleet_trainer_parity_tolerance", "The same from which on versions are refused")
REFUSED: Final = Counter("gymfleet_trainer_versions_refused", "Attempts to publish that ended in a refusal")
HELD: Final = Gauge("gymfleet_trainer_trajectories_held", "Trajectories received and not yet acknowledged")
GROUPS: Final = Counter("gymfleet_trainer_groups", "Training groups by what became of them", ["outcome"])
UNREWARDED: Final = Counter(
    "gymfleet_trainer_trajectories_without_reward", "Episodes played to their end whose reward could not be computed"
)
BURIED: Final = Counter(
    "gymfleet_trainer_trajectories_buried", "Records that were unreadable, or of no use to this run"
)
REPLAYED: Final = Counter("gymfleet_trainer_samples_replayed", "Samples that were asked for again within their group")
TOKENS: Final = Counter("gymfleet_trainer_tokens", "Sampled tokens that were trained on")
PROGRESS: Final = Gauge("gymfleet_trainer_progress_timestamp_seconds", "When the run last got on, in Unix time")
DISK_FREE: Final = Gauge("gymfleet_trainer_disk_free_bytes", "Room on the disk of the run directory")
DISK_SIZE: Final = Gauge("gymfleet_trainer_disk_size_bytes", "Size of the disk of the run directory")
