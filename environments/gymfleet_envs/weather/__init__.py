"""AgentGym's weather: Open-Meteo's services over a generated climate."""
