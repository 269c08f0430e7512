"""What goes wrong with a peer: it is reported, and the others go on."""


class PeerError(Exception):
    """A peer cannot be set up, started or measured; the message says why and where its log is."""
