"""The parts of one loaded partition: manager, physical queue, dispatcher, matcher, backlog, lease and limits."""
