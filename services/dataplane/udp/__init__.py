"""What backend `udp` needs beside kernel objects: the process that carries packets in user space, and watchers.

The proxy imports little, as it shall be there soon; the dataplane's other rooms know its command line only.
"""
