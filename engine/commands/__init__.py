"""The commands of ``python -m engine``, one file a group. Heavy imports happen inside the commands."""
