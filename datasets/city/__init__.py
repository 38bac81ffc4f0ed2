"""Streets whose classes look as they usually do, with weather, night and a camera of its own."""
