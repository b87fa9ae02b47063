"""One thin command per rule: arguments -> library -> files and record."""
