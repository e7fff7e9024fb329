-- Children become sessions of their own. A turn that waits for one waits until it is interrupted.

DROP TABLE children;
