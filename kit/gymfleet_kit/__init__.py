"""What every service needs and none should write twice."""
