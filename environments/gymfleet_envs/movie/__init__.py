"""AgentGym's movie: TMDB's services over a generated catalogue."""
