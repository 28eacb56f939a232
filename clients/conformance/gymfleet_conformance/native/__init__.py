"""The session API's promises, group by group."""
