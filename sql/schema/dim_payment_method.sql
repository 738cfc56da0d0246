CREATE TABLE IF NOT EXISTS dim_payment_method (
    payment_method_key BIGINT NOT NULL,
    code VARCHAR NOT NULL,
    label VARCHAR NOT NULL,
    created_by VARCHAR NOT NULL,
    PRIMARY KEY (payment_method_key),
    UNIQUE (code)
);
