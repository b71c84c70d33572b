"""Reports: Program and Profile become tables, traces and pictures. Nothing here computes a figure of its own."""
