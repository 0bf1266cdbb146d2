exec(open('/tmp/att1d/lib.py').read())
for kw in (dict(turns="mbarrier"),dict(queries="registers"),dict(weights="shared"),dict(weights="shared",queries="registers",skew=0)):
    small={"depth":64,"tile_n":64}
    for cons in (1,2):
        if cons==1 and "turns" in kw: continue
        v={**STARTS["fa3"],**small,"consumers":cons,**kw}
        if cons==1: v["turns"]="none"
        p=build(v); print(kw,cons,verdict(p).outcome,end=' '); t=time.time()
        r=computes(p,{"l":1,"h":1,"g":2,"m":150,"n":170,"d":64,"e":56}); print(bool(r),str(r)[:300],round(time.time()-t,1))
