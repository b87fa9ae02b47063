"""What a file that is not the expected format really is, for the message."""

SAFETENSORS = "it is a safetensors file"


def what_it_is(beginning: bytes) -> str:
    """A phrase about a file that begins with these bytes, or an empty string."""
    text = beginning.lstrip().lower()
    if beginning.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the weights (run `git lfs pull` in the clone)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, probably a server's error message"
    if beginning.startswith(b"GGUF"):
        return "it is a GGUF file"
    if beginning.startswith(b"PK\x03\x04"):
        return "it is a zip archive, as torch.save writes"
    if beginning.startswith((b"\x80\x02\x8a\x0al\xfc\x9c", b"\x80\x02}", b"\x80\x02c")):
        return "it is a pickle in the format that torch.save wrote before version 1.6"
    if beginning[257:262] == b"ustar":
        return "it is a tar archive"
    if beginning[8:9] == b"{":
        return SAFETENSORS
    return ""
