-- Takes away who may call; whoever held a token has to be given a new one.

DROP TABLE sign_in_codes;
DROP TABLE tokens;
