"""Pure decisions: no I/O, clock, randomness or concurrency.

Time, random numbers and ids come in as arguments; what to do goes out as the result. The services run this code
one request at a time, the pipeline runs the same code over months of data.
"""
