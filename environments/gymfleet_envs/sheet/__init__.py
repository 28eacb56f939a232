"""AgentGym's sheet: a workbook in memory."""
