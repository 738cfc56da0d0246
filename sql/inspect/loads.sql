-- the load ledger, newest first: what each load brought
SELECT
    load_id,
    fact_rows,
    customer_rows AS new_customers,
    product_rows AS new_products,
    quarantine_rows,
    counts,
    loaded_at
FROM load_ledger
ORDER BY loaded_at DESC, pipeline, batch_id DESC;
