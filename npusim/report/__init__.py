"""Reports: values (Program, Profile, Run) become tables, traces and pictures. Nothing here computes a figure of its own."""
