"""Pure decisions: no I/O, clock, randomness or concurrency.

Time, random numbers and ids are arguments; the result says what to do. The services run this code for one request at a
time, the pipeline runs the same code over months of data.
"""
