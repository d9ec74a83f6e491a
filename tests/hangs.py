"""How long tests wait before they call a process or a thread hung."""

#: Seconds. It guards against hangs alone: with fifteen busy processes on two cores, what takes ten
#: seconds on an idle machine takes minutes.
HANG = 900.0
