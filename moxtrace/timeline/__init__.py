"""What every link does when: a block's messages as a trace for ui.perfetto.dev."""

from moxtrace.timeline.timeline import Timeline, config_of, timeline_of

__all__ = ["Timeline", "config_of", "timeline_of"]
