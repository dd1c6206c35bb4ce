"""Batch work in OpenAI's file format: many requests in a file, their answers in another, in the same order.

`lines` reads and writes the format, `journal` keeps what is done on the disk, `job` joins the two, `in_process` answers
one request with the handlers of the server, and `runner` keeps many of them in flight.
"""
