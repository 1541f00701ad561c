"""Model servers, a file a kind: command line, readiness, counters. A server's library is imported only in its child."""
