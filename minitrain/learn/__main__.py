"""`python -m minitrain.learn`: print how this machine would isolate a submission's process, and from what."""

from minitrain.learn.confinement import PROPERTIES
from minitrain.learn.sandbox import probe

found = probe()
print(f"isolation: {found}")
for name in PROPERTIES:
    print(f"  {name}: {', '.join(found.held_by(name)) or 'not held by the kernel'}")
